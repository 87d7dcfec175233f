"""Decides, over a snapshot, which waiting jobs start. Pure: no Django, no clock.

Order: priority, then age. The first job of a pool that must wait reserves its slots: nothing behind it in that pool
passes it, so a large job is never starved by small ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from athanor.jobs.reasons import Reason


@dataclass(frozen=True)
class PoolState:
    """`used` counts the slots of every job that holds any."""

    id: str
    slots: int
    used: int
    enabled: bool = True


@dataclass(frozen=True)
class TeamState:
    """A limit of None is no limit."""

    id: str
    running_jobs: int
    used_slots: int
    max_running_jobs: int | None = None
    max_slots: int | None = None


@dataclass(frozen=True)
class Waiting:
    job_id: str
    team_id: str
    pool_id: str
    slots: int
    priority: int


@dataclass(frozen=True)
class Snapshot:
    pools: Sequence[PoolState]
    teams: Sequence[TeamState]
    waiting: Sequence[Waiting]


@dataclass(frozen=True)
class Decision:
    """`reason` is None for a job that starts."""

    job_id: str
    reason: Reason | None
    detail: str = ""

    @property
    def admitted(self) -> bool:
        return self.reason is None


@dataclass
class _Room:
    """What is left while decisions are made."""

    used: dict[str, int]
    running: dict[str, int]
    team_slots: dict[str, int]
    blocked_pools: set[str] = field(default_factory=set)


def decide(snapshot: Snapshot) -> list[Decision]:
    """One decision for each waiting job, in the order in which they were considered."""
    pools = {pool.id: pool for pool in snapshot.pools}
    teams = {team.id: team for team in snapshot.teams}
    room = _Room(
        used={pool.id: pool.used for pool in snapshot.pools},
        running={team.id: team.running_jobs for team in snapshot.teams},
        team_slots={team.id: team.used_slots for team in snapshot.teams},
    )
    decisions = []
    for job in sorted(snapshot.waiting, key=lambda job: (-job.priority, job.job_id)):
        decision = _decide_one(job, pools[job.pool_id], teams[job.team_id], room)
        if decision.admitted:
            room.used[job.pool_id] += job.slots
            room.running[job.team_id] += 1
            room.team_slots[job.team_id] += job.slots
        elif decision.reason is Reason.WAITING_FOR_CAPACITY:
            room.blocked_pools.add(job.pool_id)
        decisions.append(decision)
    return decisions


def _decide_one(job: Waiting, pool: PoolState, team: TeamState, room: _Room) -> Decision:
    if not pool.enabled:
        return Decision(job.job_id, Reason.CLUSTER_DOWN, "An administrator has disabled it.")
    running, slots = room.running[team.id], room.team_slots[team.id]
    if team.max_running_jobs is not None and running >= team.max_running_jobs:
        detail = f"{running} of {team.max_running_jobs} running jobs."
        return Decision(job.job_id, Reason.QUOTA_EXCEEDED, detail)
    if team.max_slots is not None and slots + job.slots > team.max_slots:
        detail = f"{slots} of {team.max_slots} slots used, {job.slots} asked."
        return Decision(job.job_id, Reason.QUOTA_EXCEEDED, detail)
    free = pool.slots - room.used[pool.id]
    # A job larger than its pool shares the slots among its processes (it was warned): it runs, but alone.
    fits = job.slots <= free or (job.slots > pool.slots and room.used[pool.id] == 0)
    if job.pool_id in room.blocked_pools:
        return Decision(job.job_id, Reason.WAITING_FOR_CAPACITY, "An earlier job is next in line.")
    if not fits:
        detail = f"{free} of {pool.slots} slots free, {job.slots} asked."
        return Decision(job.job_id, Reason.WAITING_FOR_CAPACITY, detail)
    return Decision(job.job_id, None)
