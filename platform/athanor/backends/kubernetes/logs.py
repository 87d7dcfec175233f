"""The pods' output, read from a cursor.

The API has no offsets, but each line has a time. The cursor contains, for each pod, the time of the last line that was
returned and how many lines of that same time were (clocks may be coarse); reading continues from that second and skips
what was returned before.
"""

import json
import re
import time
from collections.abc import Sequence
from typing import Any

from athanor.backends.base import LOG_PART_BYTES, LogPart
from athanor.backends.kubernetes.client import CALL_SECONDS, KubernetesClient, Refused, path
from athanor.backends.kubernetes.objects import CONTAINER
from athanor.backends.kubernetes.state import PodState

FRACTION = re.compile(r"\.[0-9]+")
MAX_PODS = 4
MAX_BYTES = 64 * LOG_PART_BYTES  # where one second holds more than a part; kubelets keep 10 MiB of a log


def chosen(pods: Sequence[PodState]) -> list[PodState]:
    """Return the pods to read: all if they are few; otherwise the first ones to fail and the first of all."""
    ordered = sorted(pods, key=lambda pod: (pod.index, pod.name))
    if len(ordered) <= MAX_PODS:
        return ordered
    failed = sorted((pod for pod in ordered if pod.phase == "Failed"), key=lambda pod: pod.ended or float("inf"))
    picked = [*failed[: MAX_PODS - 1], ordered[0]]
    return sorted({pod.name: pod for pod in picked}.values(), key=lambda pod: pod.index)


def read(client: KubernetesClient, pods: Sequence[PodState], cursor: str | None) -> LogPart:
    """Return the next part of the pods' output, prefixed with the pod's index if there are several."""
    deadline = time.monotonic() + CALL_SECONDS
    seen: dict[str, str] = json.loads(cursor) if cursor else {}
    picked = chosen(pods)
    text, room = "", LOG_PART_BYTES
    for pod in picked:
        label = f"[{pod.index}] " if len(pods) > 1 else ""
        part, last = _read_pod(client, pod, seen.get(pod.name, ""), label, room // len(picked), deadline)
        text += part
        if last:
            seen[pod.name] = last
    return LogPart(text, json.dumps(seen, separators=(",", ":")))


def _read_pod(
    client: KubernetesClient, pod: PodState, after: str, label: str, room: int, deadline: float
) -> tuple[str, str]:
    """Return complete lines after `after`, and the mark of the last one. Times of one length sort as text."""
    mark = _mark(after)
    limit = room
    while True:
        content = _ask(client, pod, after, limit, deadline)
        is_all = len(content) < limit
        lines = content.split(b"\n")
        if not is_all or content.endswith(b"\n"):
            lines.pop()  # empty, or cut off
        text, last, left = "", after, room
        stamp, number = "", 0
        for line in lines:
            at, _, words = line.partition(b" ")
            stamp, before = at.decode(errors="replace"), stamp
            number = number + 1 if stamp == before else 1
            if (stamp, number) <= mark:
                continue
            said = f"{label}{words[: room - len(label) - 1].decode(errors='replace')}\n"
            left -= len(said.encode())
            if left < 0 and text:
                break
            text, last = text + said, f"{stamp} {number}"
        if text or is_all or limit >= MAX_BYTES:
            return text, last
        limit *= 4


def _mark(text: str) -> tuple[str, float]:
    """Return a mark's time, and how many lines of it were returned; cursors of earlier versions have the time only."""
    stamp, _, number = text.partition(" ")
    return stamp, int(number) if number else float("inf")


def _ask(client: KubernetesClient, pod: PodState, after: str, limit: int, deadline: float) -> bytes:
    query: dict[str, Any] = {"container": CONTAINER, "timestamps": "true", "limitBytes": limit}
    if after:
        query["sinceTime"] = FRACTION.sub("", _mark(after)[0])
    where = path("v1", "pods", pod.namespace, pod.name, "log")
    try:
        return client.request("GET", where, deadline=deadline, **query).content
    except Refused:
        return b""  # it has not started, or is gone
