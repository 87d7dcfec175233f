"""Read the output of an attempt's pods from a cursor.

The API has no offsets, but each line has a time. The cursor contains, for each pod, the time of the last line that was
returned and the number of lines with that time that were returned, because clocks may be coarse. The next call reads
from that second and skips those lines.
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
MAX_BYTES = 64 * LOG_PART_BYTES  # asked of a pod if one second has more output than a part; kubelets store 10 MiB


def select_pods(pods: Sequence[PodState]) -> list[PodState]:
    """Return the pods to read: all if there are at most MAX_PODS, else those that failed first and the lowest index."""
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
    picked = select_pods(pods)
    text = ""
    for pod in picked:
        label = f"[{pod.index}] " if len(pods) > 1 else ""
        part, last = _read_pod(client, pod, seen.get(pod.name, ""), label, LOG_PART_BYTES // len(picked), deadline)
        text += part
        if last:
            seen[pod.name] = last
    return LogPart(text, json.dumps(seen, separators=(",", ":")))


def _read_pod(
    client: KubernetesClient, pod: PodState, after: str, label: str, max_bytes: int, deadline: float
) -> tuple[str, str]:
    """Return complete lines after the position `after`, and the position of the last one.

    Times are compared as text, which sorts them because they have the same length.
    """
    position = _parse_position(after)
    limit = max_bytes
    while True:
        content = _fetch(client, pod, after, limit, deadline)
        is_all = len(content) < limit
        lines = content.split(b"\n")
        if not is_all or content.endswith(b"\n"):
            lines.pop()  # empty, or cut off
        text, last, left = "", after, max_bytes
        stamp, number = "", 0
        for line in lines:
            at, _, message = line.partition(b" ")
            stamp, before = at.decode(errors="replace"), stamp
            number = number + 1 if stamp == before else 1
            if (stamp, number) <= position:
                continue
            output = f"{label}{message[: max_bytes - len(label) - 1].decode(errors='replace')}\n"
            left -= len(output.encode())
            if left < 0 and text:
                break
            text, last = text + output, f"{stamp} {number}"
        if text or is_all or limit >= MAX_BYTES:
            return text, last
        limit *= 4


def _parse_position(text: str) -> tuple[str, float]:
    """Return the time of a position and how many lines with it were returned, infinity for cursors without a number.

    Cursors of earlier versions have only the time.
    """
    stamp, _, number = text.partition(" ")
    return stamp, int(number) if number else float("inf")


def _fetch(client: KubernetesClient, pod: PodState, after: str, limit: int, deadline: float) -> bytes:
    query: dict[str, Any] = {"container": CONTAINER, "timestamps": "true", "limitBytes": limit}
    if after:
        query["sinceTime"] = FRACTION.sub("", _parse_position(after)[0])
    where = path("v1", "pods", pod.namespace, pod.name, "log")
    try:
        return client.request("GET", where, deadline=deadline, **query).content
    except Refused:
        return b""  # the pod has not started or no longer exists
