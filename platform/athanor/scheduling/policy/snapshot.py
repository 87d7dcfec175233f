"""The input and output of an admission cycle: snapshots and decisions. Pure data: no Django, no clock.

Slots are integers, times integer seconds, money and budgets integers of their smallest unit, so that the same snapshot
always gives the same decisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from athanor.jobs.reasons import Reason
from athanor.quotas.capacity import CapacityNode


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool.

    `slots`: in service, without nodes that are down or quarantined; `size`: with them. `spare`: slots of the nodes that
    replace lost ones. `note`: for people.
    """

    id: str
    name: str
    accelerator: str
    slots: int
    size: int
    enabled: bool = True
    note: str = ""
    spare: int = 0

    @property
    def usable(self) -> int:
        """Return the slots that jobs may hold. A node that is out of service takes the place of a spare one."""
        return max(0, min(self.slots, self.size - self.spare))


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget with the amount available in the current period; a hard one admits nothing above it.

    `unit`: for people.
    """

    id: str
    name: str
    available: int
    hard: bool
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a job is not considered, regardless of capacity."""

    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """A job that holds slots.

    `ends_in_seconds`: at the latest, None if unknown. `unsaved_seconds`: since its last durable checkpoint, or since
    its start. `leaving`: it was asked to release its slots. `stoppable`: it has started, so that it can be asked.
    """

    job_id: str
    node: str
    pool: str
    slots: int
    priority: int = 0
    ran_seconds: int = 0
    ends_in_seconds: int | None = None
    unsaved_seconds: int = 0
    leaving: bool = False
    stoppable: bool = True
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued job. Ids sort by age.

    `lasts_seconds`: its longest run time. `costs`: the amount that its start would reserve of each budget. `nodes`: it
    starts on all of them together or not at all.
    """

    job_id: str
    node: str
    pool: str
    slots: int
    priority: int = 0
    waited_seconds: int = 0
    lasts_seconds: int | None = None
    nodes: int = 1
    costs: tuple[tuple[str, int], ...] = ()
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Admission settings.

    `age_step_seconds`: waiting time that raises a job one priority class, 0 for never. `protected_seconds`: minimum run
    time before a job can be preempted, doubled with each earlier preemption of it.
    """

    fair_share: bool = True
    half_life_seconds: int = 7 * 86_400
    age_step_seconds: int = 86_400
    backfill: bool = True
    preempt: bool = True
    protected_seconds: int = 600


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a decision depends on."""

    nodes: Sequence[CapacityNode]
    pools: Sequence[Pool]
    holdings: Sequence[Holding]
    waiting: Sequence[Waiting]
    budgets: Sequence[Budget] = ()
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class Blocker:
    """What a job waits for.

    `kind`: pool, quota, limit, budget, turn or hold; `id` and `name` are those of the pool, quota node or budget, and
    for `turn` of the job that is next. `holders`: (job, slots) of the jobs that hold what it lacks.
    """

    kind: str
    id: str
    name: str
    lacking: int = 0
    holders: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one queued job; `reason` is None if it starts.

    Otherwise `detail` is a sentence on what it waits for and `unblocks` one on what would let it start; `victims` are
    the jobs preempted for it; `position`, from 1, is its place among the jobs that wait for its pool;
    `starts_in_seconds` is the latest start of its reservation, if it has one.
    """

    job_id: str
    reason: Reason | None = None
    detail: str = ""
    unblocks: str = ""
    blocker: Blocker | None = None
    victims: tuple[str, ...] = ()
    position: int = 0
    starts_in_seconds: int | None = None

    @property
    def admitted(self) -> bool:
        """Return whether the job starts now."""
        return self.reason is None
