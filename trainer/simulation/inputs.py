"""Named inputs of the simulation: durations, rates and causes of failures, each with where it comes from.

Measured figures are those of docs/benchmarks.md. They are of one H100 or of a few processes on two CPU cores, so for
larger numbers of GPUs durations that others have published take their place where they are longer.
"""

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from math import isfinite, log2

from trainer.contract.checkpoint_interval import SLOT_HOURS_BETWEEN_FAILURES
from trainer.contract.run import EndClass

MEASURED_GPUS = 8
"""Up to here the durations of recovery are our own; the largest that were measured are of four processes."""
PUBLISHED_GPUS = 16_384
"""The largest number of GPUs with published rates of failures and durations of restarts."""
_RESTARTS = ((8, 4.7), (2048, 46.0), (4096, 51.0), (8192, 54.0), (16_384, 65.0))
_ATTEMPTS = ((8, 42.0), (2048, 454.0), (4096, 545.0), (8192, 635.0), (16_384, 768.0))


class Ground(StrEnum):
    """What the value of an input stands on."""

    MEASURED = "measured"
    PUBLISHED = "published"
    ASSUMED = "assumed"
    GIVEN = "given"


class Tier(StrEnum):
    """Where a restart reads the state from."""

    SHADOW = "shadow"
    PEER = "peer"
    STORED = "stored"


@dataclass(frozen=True)
class Cause:
    """A kind of interruption. `count`: how many of `published`. `loses_node`: the node's memory is gone, whatever the
    rung. `saves_first`: it is planned, and a checkpoint is saved before it."""

    name: str
    count: float
    end_class: EndClass
    loses_node: bool = False
    saves_first: bool = False


LLAMA_3_CAUSES = (
    Cause("GPU", 148 + 72 + 19 + 17 + 6, EndClass.GPU_FAULT),
    Cause("silent data corruption", 6, EndClass.GPU_FAULT),
    Cause("software", 54, EndClass.INTERNAL_ERROR),
    Cause("network", 35 + 7, EndClass.NETWORK_ERROR),
    Cause("NCCL watchdog", 7, EndClass.HANG),
    Cause("host", 32, EndClass.NETWORK_ERROR, loses_node=True),
    Cause("others", 16, EndClass.NETWORK_ERROR, loses_node=True),
)
"""The 419 unexpected interruptions of Llama 3 405B (arXiv:2407.21783, table 5), by the end that our trainer would
report. That hosts and all others lose their node is an assumption, on the side of caution."""
PLANNED = Cause("planned", 47, EndClass.STOPPED, saves_first=True)
"""The planned interruptions in the same 54 days."""


@dataclass(frozen=True)
class Inputs:
    """What the simulation computes from. Times in seconds.

    `stall`: training waits while the state is copied; `slowdown`: of steps, while a checkpoint is written, as a share.
    `write_rate`, `read_rate`: of a rank to and from the store, in GB/s. `interval`: of stored checkpoints, None for the
    one that runs choose. `shadow_interval`: None without shadow checkpoints; `shadow_share`, `peer_share`: of the time,
    what they take. `detect`: until a failure is known; `detect_hang`: until a hang is. `restart`: from there to the
    next step, in place or with a spare node, without reading the state; `new_attempt`: the same with a new attempt.
    `repeat`: restarts in place of each node in an attempt. `hours_between_failures`: of one GPU, the unexpected ones.
    `planned_hours`: of one GPU, None for none.
    """

    state_gb: float = 4.0
    stall: float = 0.6
    slowdown: float = 0.17
    write_rate: float = 0.1
    read_rate: float = 0.1
    interval: float | None = None
    step: float = 5.0
    shadow_interval: float | None = 5.0
    shadow_share: float = 0.007
    has_peers: bool = False
    peer_share: float = 0.03
    detect: float = 1.0
    detect_node: float = 30.0
    detect_hang: float = 60.0
    restart: float | None = None
    new_attempt: float | None = None
    repeat: int = 1
    spares: int = 1
    gpus_per_node: int = 8
    hours_between_failures: float = SLOT_HOURS_BETWEEN_FAILURES
    planned_hours: float | None = None

    @property
    def save_seconds(self) -> float:
        """Return how long a checkpoint takes until it is stored."""
        return self.state_gb / self.write_rate

    @property
    def save_cost(self) -> float:
        """Return the seconds of training that a stored checkpoint costs."""
        return self.stall + self.slowdown * self.save_seconds

    def restart_seconds(self, gpus: int) -> float:
        """Return `restart`, or the figure for so many GPUs."""
        return self.restart if self.restart is not None else _between(_RESTARTS, gpus)

    def new_attempt_seconds(self, gpus: int) -> float:
        """Return `new_attempt`, or the figure for so many GPUs."""
        return self.new_attempt if self.new_attempt is not None else _between(_ATTEMPTS, gpus)


def _between(points: tuple[tuple[int, float], ...], gpus: int) -> float:
    """Return the figure for a number of GPUs, between two known ones linear in its logarithm. Beyond the last one it
    rises as between the last two; below the first one it is the first."""
    if gpus <= points[0][0]:
        return points[0][1]
    at = next((place for place, (known, _) in enumerate(points) if known >= gpus), len(points) - 1)
    (low, before), (high, after) = points[at - 1], points[at]
    return before + (after - before) * log2(gpus / low) / log2(high / low)


NOTES: dict[str, tuple[Ground, str]] = {
    "state_gb": (Ground.PUBLISHED, "largest checkpoint of a GPU of Llama 3 405B (1 MB to 4 GB, arXiv:2407.21783)"),
    "stall": (Ground.MEASURED, "0.18 s for 1.2 GB on a CPU, in proportion to the state"),
    "slowdown": (Ground.MEASURED, "1.17 times, beside a save of 1.2 GB on a CPU"),
    "write_rate": (Ground.PUBLISHED, "below 2 TB/s sustained for 16,384 GPUs (arXiv:2407.21783); a CPU core: 0.2 GB/s"),
    "read_rate": (Ground.ASSUMED, "as write_rate"),
    "interval": (Ground.MEASURED, "the formula that runs use: sqrt(2 x cost of a save x time between failures)"),
    "step": (Ground.ASSUMED, "a step of a large run takes seconds"),
    "shadow_interval": (Ground.MEASURED, "a copy after each step, which `auto` allows where copies are cheap"),
    "shadow_share": (Ground.MEASURED, "0.7 % of the time on one H100, 14.8 GB, a copy in one of four steps"),
    "has_peers": (Ground.ASSUMED, "runs with spare nodes send copies to other nodes; not measured on GPUs"),
    "peer_share": (Ground.ASSUMED, "the limit of `auto` on CPUs; not measured on GPUs"),
    "detect": (Ground.ASSUMED, "an agent waits for its processes and sees an end immediately"),
    "detect_node": (Ground.MEASURED, "30 s until Slurm gave a node up (SlurmdTimeout 8 s)"),
    "detect_hang": (Ground.MEASURED, "35 s on one H100 and on CPUs; the limit of 60 s here"),
    "restart": (Ground.PUBLISHED, "to 8 GPUs 4.7 s, measured on one H100 with 0.3 billion parameters; from 2,048 on "
                "46 to 65 s of ByteRobust (arXiv:2509.16293); between them by logarithm"),
    "new_attempt": (Ground.PUBLISHED, "to 8 GPUs 42 s, measured with two nodes of a Slurm on one host; from 2,048 on "
                    "454 to 768 s of ByteRobust (arXiv:2509.16293); between them by logarithm"),
    "repeat": (Ground.MEASURED, "default of retry.restarts_in_place; each spare node adds one"),
    "spares": (Ground.ASSUMED, "spare nodes of an attempt; a new attempt has as many again"),
    "gpus_per_node": (Ground.ASSUMED, "as usual"),
    "hours_between_failures": (Ground.PUBLISHED, "419 of 16,384 GPUs in 54 days (arXiv:2407.21783)"),
    "planned_hours": (Ground.ASSUMED, "no planned interruptions"),
}  # fmt: skip
"""What the default of each input stands on."""


def overridden(base: Inputs, **given: float | int | bool | None) -> Inputs:
    """Return inputs with other values. Raise ValueError for one that cannot be."""
    inputs = replace(base, **given)  # type: ignore[arg-type] # checked below
    optional = {"interval", "shadow_interval", "restart", "new_attempt", "planned_hours"}
    for each in fields(inputs):
        value = getattr(inputs, each.name)
        if value is None and each.name in optional:
            continue
        may_be_zero = each.name in {
            "stall", "slowdown", "shadow_share", "peer_share", "detect", "detect_node", "detect_hang", "restart",
            "new_attempt", "repeat", "spares", "has_peers",
        }  # fmt: skip
        if value is None or not isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
            raise ValueError(f"{each.name}={value}: give a number {'of 0 or more' if may_be_zero else 'above 0'}")
    return inputs
