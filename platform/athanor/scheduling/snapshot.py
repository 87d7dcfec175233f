"""What admission knows at one moment, and what it decided. Pure data: no Django, no clock.

Slots are whole numbers, times whole seconds, money and budgets whole numbers of their smallest unit, so that the same
snapshot always gives the same decisions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from athanor.jobs.reasons import Reason


@dataclass(frozen=True, slots=True)
class Grant:
    """Slots of one accelerator that a node of the quota tree has, with Kueue's meaning: `nominal` are its own,
    `borrow_limit` is how many more its subtree may use of what others leave idle, `lend_limit` how many of its own
    others may use. None is no limit."""

    nominal: int = 0
    borrow_limit: int | None = None
    lend_limit: int | None = None


@dataclass(frozen=True, slots=True)
class QuotaNode:
    """A node of the quota tree; jobs belong to its leaves. The limits hold for its whole subtree, None is no limit.
    `recent`, of a leaf: slots of each accelerator that it used on average, decayed by the half-life."""

    id: str
    name: str
    parent: str | None = None
    weight: float = 1.0
    grants: Mapping[str, Grant] = field(default_factory=dict)
    max_running_jobs: int | None = None
    max_slots: int | None = None
    recent: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pool:
    """`slots`: those that can be used now, without nodes that are down or in quarantine; never of fewer use than what
    is held there. `size`: with them. `note` is for people."""

    id: str
    name: str
    accelerator: str
    slots: int
    size: int
    enabled: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """What is left in the current period: of a hard budget nothing is admitted above it. `unit` is for people."""

    id: str
    name: str
    available: int
    hard: bool
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a job is not considered, whatever is free."""

    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """A job that holds slots. `ends_in_seconds` is the latest it can take (None: nobody knows). `unsaved_seconds`:
    since its last durable checkpoint, or since it began. `leaving`: it was asked to give its slots back. `stoppable`:
    it is so far that it can be asked."""

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
    """A job that waits. Ids sort by age. `lasts_seconds` is the latest it can take. `costs`: what its start would
    reserve of each budget that it is charged to. `nodes`: it starts on all of them at once, or not."""

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
    """`age_step_seconds`: a job that has waited so long counts as one priority class higher, 0 for never.
    `protected_seconds`: nobody is preempted in its first seconds, doubled with each time that it was before."""

    fair_share: bool = True
    half_life_seconds: int = 7 * 86_400
    age_step_seconds: int = 86_400
    backfill: bool = True
    preempt: bool = True
    protected_seconds: int = 600


@dataclass(frozen=True, slots=True)
class Snapshot:
    nodes: Sequence[QuotaNode]
    pools: Sequence[Pool]
    holdings: Sequence[Holding]
    waiting: Sequence[Waiting]
    budgets: Sequence[Budget] = ()
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class Blocker:
    """What a job waits for. `kind`: pool, quota, limit, budget, turn, or hold; `id` and `name` of the pool, node of the
    tree, or budget; for `turn` of the job that is next. `holders`: (job, slots) of who has what it lacks."""

    kind: str
    id: str
    name: str
    lacking: int = 0
    holders: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """`reason` is None for a job that starts. Else: `detail`, a sentence on what it waits for; `unblocks`, one on what
    would let it start; `victims`, the jobs that are now asked to make room for it; `position`, from 1, among those that
    wait for its pool; `starts_in_seconds`, by when it has its reservation at the latest, if it has one."""

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
        return self.reason is None
