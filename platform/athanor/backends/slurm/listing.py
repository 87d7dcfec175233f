"""Parsing of the output of squeue, sacct and scontrol."""

import re
from collections.abc import Iterable, Iterator, Mapping

from athanor.backends.facts import NodeFacts, NodeState
from athanor.backends.slurm import parse
from athanor.backends.slurm.parse import SlurmJob
from athanor.backends.slurm.script import NAME

# Of squeue. Each field as long as it is (":0"), with a letter behind it that none of ours holds, but for the last one:
# an administrator may write any comment.
FIELDS = (
    "JobID", "Name", "State", "RestartCnt", "exit_code", "TimeUsed", "TimeLeft", "StartTime", "PreemptTime",
    "NodeList", "Reason", "Comment",
)  # fmt: skip
FORMAT = ",".join(f"{field}:0|" for field in FIELDS)
ACCOUNTED = "JobIDRaw,JobName%100,State%40,ExitCode,ElapsedRaw,NodeList%4000"

MEBIBYTE = 1024**2
UP = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "RESERVED", "PLANNED", "BLOCKED"})
OUT = frozenset({
    "DOWN", "ERROR", "FAIL", "FAILING", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "FUTURE",
    "INVAL", "REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED",
})  # fmt: skip
TAKEN_OUT = frozenset({"DRAIN", "DRAINED", "DRAINING", "MAINT", "MAINTENANCE"})


def jobs(lines: Iterable[bytes]) -> Iterator[SlurmJob]:
    """Parse squeue's output in FORMAT; the first line is the cluster's time. Jobs that are not ours are omitted."""
    now: int | None = None
    for raw in lines:
        line = raw.decode(errors="replace").rstrip("\n")
        if now is None and line.isdigit():
            now = int(line)
            continue
        fields = line.removesuffix("|").split("|", len(FIELDS) - 1)
        if len(fields) == len(FIELDS) and fields[0].isdigit() and NAME.fullmatch(fields[1]):
            yield _job(fields, now)


def _job(fields: list[str], now: int | None) -> SlurmJob:
    number, name, state, restarts, exit_code, used, left, start, preempted, nodes, reason, comment = fields
    status, signal = parse.wait_status(exit_code)
    starts = float(int(start) - now) if start.isdigit() and int(start) and now is not None else None
    return SlurmJob(
        number=int(number),
        name=name,
        state=parse.parse_state(state),
        reason=reason.strip("()"),
        status=status,
        signal=signal,
        restarts=int(restarts) if restarts.isdigit() else 0,
        running_seconds=parse.parse_duration(used),
        seconds_left=parse.parse_duration(left),
        starts_in_seconds=max(starts, 0.0) if starts is not None else None,
        was_preempted=preempted.isdigit() and int(preempted) > 0,
        nodes=tuple(parse.expand_hostlist(nodes)),
        comment=comment,
    )


def accounted(lines: Iterable[str]) -> Iterator[SlurmJob]:
    """Parse sacct's output in ACCOUNTED with --duplicates: a restarted job has a line per start, the latest last."""
    times: dict[int, int] = {}
    for line in lines:
        fields = line.split("|")
        if len(fields) != 6 or not fields[0].isdigit() or not NAME.fullmatch(fields[1]):
            continue
        number = int(fields[0])
        status, signal = parse.wait_status(fields[3])
        yield SlurmJob(
            number=number,
            name=fields[1],
            state=parse.parse_state(fields[2]),
            status=status,
            signal=signal,
            restarts=times.get(number, 0),
            running_seconds=float(fields[4]) if fields[4].isdigit() else None,
            nodes=tuple(parse.expand_hostlist(fields[5])),
        )
        times[number] = times.get(number, 0) + 1


def settings(lines: Iterable[str]) -> dict[str, str]:
    """Parse `scontrol show config`."""
    found = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals:
            found[name.strip()] = value.strip()
    return found


def switches(lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Parse `scontrol show topology`: the switches above each node, the outermost first."""
    levels: list[tuple[int, str, list[str]]] = []
    for line in lines:
        found = dict(re.findall(r"(\w+)=(\S*)", line))
        if "SwitchName" in found and found.get("Level", "").isdigit():
            levels.append((int(found["Level"]), found["SwitchName"], parse.expand_hostlist(found.get("Nodes", ""))))
    above: dict[str, tuple[str, ...]] = {}
    for _, switch, below in sorted(levels, key=lambda level: -level[0]):
        for node in below:
            above[node] = (*above.get(node, ()), switch)
    return above


def nodes(lines: Iterable[str], above: Mapping[str, tuple[str, ...]]) -> list[NodeFacts]:
    """Parse `scontrol --details --oneliner show node`. The reason is free text, so it is cut off first."""
    found = []
    for line in lines:
        head, _, tail = line.partition(" Reason=")
        values = dict(re.findall(r"(\w+)=(\S*)", head))
        if "NodeName" in values:
            reason = re.sub(r" \[[^\[\]]*@[^\[\]]*\].*$", "", tail).strip()
            found.append(node(values, reason, above.get(values["NodeName"], ())))
    return found


def node(values: Mapping[str, str], reason: str, above: tuple[str, ...]) -> NodeFacts:
    """Build a node from the values of one line."""
    state = frozenset(re.split(r"[+]", re.sub(r"[*~#!%$@^-]+$", "", values.get("State", "").upper())))
    if "*" in values.get("State", ""):
        state |= {"NOT_RESPONDING"}
    cpus = _number(values.get("CPUTot"))
    accelerator, slots = gpus(values.get("Gres", ""))
    if slots:
        kind, used = gpus(values.get("GresUsed", ""))
        # Where Slurm does not report usage, only idle nodes count as free.
        if kind in ("", "cpu"):
            used = 0 if "IDLE" in state else slots
    else:
        slots, used = cpus, _number(values.get("CPUAlloc"))
    return NodeFacts(
        name=values["NodeName"],
        state=node_state(state),
        reason=reason,
        pools=tuple(name for name in values.get("Partitions", "").split(",") if name),
        accelerator=accelerator,
        slots=slots,
        slots_used=min(used, slots),
        cpus=cpus,
        memory_bytes=_number(values.get("RealMemory")) * MEBIBYTE,
        topology=above,
        labels={"features": values["ActiveFeatures"]} if values.get("ActiveFeatures", "(null)") != "(null)" else {},
    )


def node_state(state: frozenset[str]) -> NodeState:
    """Map Slurm's states of a node to ours."""
    if state & OUT:
        return NodeState.DOWN
    if state & TAKEN_OUT:
        return NodeState.DRAINED
    return NodeState.READY if state & UP else NodeState.UNKNOWN


def gpus(text: str) -> tuple[str, int]:
    """Return (type, number) of a Gres value: `gpu:h100:8(S:0-1),nic:2` gives ("h100", 8).

    Without a type it is "gpu"; ("cpu", 0) without GPUs; ("", 0) for a value that is not one ("N/A").
    """
    if text.strip() in ("", "(null)"):
        return "cpu", 0
    kind, total = "", 0
    for entry in re.findall(r"gpu(?::[^,()]+)*(?:\([^)]*\))?", text):
        parts = re.sub(r"\(.*", "", entry).split(":")
        if parts[-1].isdigit():
            total += int(parts[-1])
            kind = kind or (parts[1] if len(parts) > 2 else "gpu")
    if kind:
        return kind, total
    return ("cpu", 0) if "N/A" not in text else ("", 0)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
