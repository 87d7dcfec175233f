"""The table of the fault kit: each kind of fault in each phase, what must follow, or why there is no such cell."""

from dataclasses import dataclass

PHASES = ("start", "compile", "step", "backward", "evaluation", "checkpoint", "export", "end")
KINDS = (
    "kill", "stop", "slow", "oom", "device", "exception", "exit", "cut", "slow-link", "disk", "store", "platform",
    "shard", "bit",
)  # fmt: skip
LINKS = ("cut", "slow-link")
"""Faults of the network between two nodes, which need network namespaces."""


@dataclass(frozen=True)
class Cell:
    """What follows from a fault on rank 1.

    `because`: a regular expression for the reason of the one restart in place; None: no restart. `events`: types of
    events that must be reported. `first_end`: end class of the first attempt, which a second one follows unless it is
    "completed". `is_exact`: the result has the same bits as the undisturbed run's; not with micro-batches of another
    size.
    """

    because: str | None = None
    events: tuple[str, ...] = ()
    first_end: str = "completed"
    is_exact: bool = True


_BY_KIND = {
    "kill": Cell(r"^rank 1 was killed by SIGKILL$"),
    "stop": Cell(r"^no progress for \d+ s in phase \w+: rank 1 is stopped \(SIGSTOP", ("progress.stalled",)),
    "slow": Cell(),
    "oom": Cell("^rank 1: MemoryError", ("memory.micro_batch_halved",), is_exact=False),
    "device": Cell("^rank 1: RuntimeError: CUDA error: an illegal memory access was encountered"),
    "exception": Cell(r"^rank 1: ValueError: an error of the fault kit \(at worker.py:\d+\)$"),
    "exit": Cell("^rank 1 exited with status 0 without a report$"),
    "cut": Cell("^no progress for|another node started a new rendezvous round", ("progress.stalled",)),
    "slow-link": Cell(),
    "disk": Cell(first_end="node_storage_error"),
    "store": Cell(),
    "platform": Cell(),
    "shard": Cell("digest differs", ("generation.started",)),
}

_CELLS = {
    ("slow", "backward"): Cell(events=("rank.slow",)),
    ("disk", "end"): Cell(),
    ("cut", "end"): Cell(),  # ranks leave without a message to each other
    ("shard", "start"): Cell(first_end="data_error"),
    ("bit", "step"): Cell("^the parameters of ranks 0, 1 differ after step 16: one has", ("replicas.differ",)),
    ("bit", "backward"): Cell(events=("gradient.corrupted",)),
}

_NO_SHARD = "no shard of data or of a checkpoint is read in this phase: each is verified as a whole when it is opened"
_NO_GRADIENT = "there are no gradients in this phase"
_IMPOSSIBLE = {
    **{("shard", phase): _NO_SHARD for phase in ("compile", "step", "backward", "evaluation")},
    **{("bit", phase): _NO_GRADIENT for phase in PHASES if phase not in ("step", "backward")},
    ("bit", "compile"): "the gradients of the pass that compiles are thrown away",
}


def cell(kind: str, phase: str) -> Cell | str:
    """Return what must follow, or the reason for which there is no such cell."""
    assert kind in KINDS and phase in PHASES, f"{kind} x {phase}"
    return _IMPOSSIBLE.get((kind, phase)) or _CELLS.get((kind, phase)) or _BY_KIND[kind]
