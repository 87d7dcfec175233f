"""Admission as a pure function: never above what there is, and the order is kept."""

from hypothesis import given
from hypothesis import strategies as st

from athanor.jobs.reasons import Reason
from athanor.scheduling.policy import PoolState, Snapshot, TeamState, Waiting, decide


def snapshot(*waiting: Waiting, slots: int = 4, used: int = 0, **limits: int) -> Snapshot:
    return Snapshot([PoolState("pool", slots, used)], [TeamState("red", 0, 0, **limits)], waiting)


def waiting(job_id: str, slots: int = 1, priority: int = 0) -> Waiting:
    return Waiting(job_id, "red", "pool", slots, priority)


def admitted(of: Snapshot) -> list[str]:
    return [decision.job_id for decision in decide(of) if decision.admitted]


def test_priority_comes_before_age() -> None:
    jobs = (waiting("job_1"), waiting("job_2", priority=10))
    assert admitted(snapshot(*jobs, slots=1)) == ["job_2"]


def test_a_large_job_at_the_head_is_not_starved_by_small_ones() -> None:
    jobs = (waiting("job_1", slots=4), waiting("job_2"))
    decisions = decide(snapshot(*jobs, used=2))
    assert [decision.reason for decision in decisions] == [Reason.WAITING_FOR_CAPACITY] * 2


def test_a_job_larger_than_its_pool_runs_alone() -> None:
    assert admitted(snapshot(waiting("job_1", slots=8))) == ["job_1"]
    assert admitted(snapshot(waiting("job_1", slots=8), used=1)) == []


def test_a_team_at_its_limit_waits_and_lets_others_pass() -> None:
    blue = TeamState("blue", 0, 0)
    red = TeamState("red", 1, 1, max_running_jobs=1)
    jobs = (waiting("job_1"), Waiting("job_2", "blue", "pool", 1, 0))
    decisions = decide(Snapshot([PoolState("pool", 4, 1)], [red, blue], jobs))
    assert [decision.reason for decision in decisions] == [Reason.QUOTA_EXCEEDED, None]


def test_a_disabled_cluster_is_named_as_the_reason() -> None:
    jobs = Snapshot([PoolState("pool", 4, 0, enabled=False)], [TeamState("red", 0, 0)], [waiting("job_1")])
    assert decide(jobs)[0].reason is Reason.CLUSTER_DOWN


jobs = st.builds(
    Waiting,
    job_id=st.uuids().map(str),
    team_id=st.sampled_from(["red", "blue"]),
    pool_id=st.sampled_from(["a", "b"]),
    slots=st.integers(1, 12),
    priority=st.sampled_from([-10, 0, 10]),
)
limits = st.one_of(st.none(), st.integers(0, 10))


@given(
    st.lists(jobs, max_size=20, unique_by=lambda job: job.job_id),
    st.tuples(st.integers(1, 8), st.integers(0, 8)),
    st.tuples(limits, limits),
)
def test_never_above_slots_or_limits_and_every_job_gets_an_answer(
    waiting_jobs: list[Waiting], pool: tuple[int, int], limit: tuple[int | None, int | None]
) -> None:
    slots, used = pool
    pools = [PoolState("a", slots, min(used, slots)), PoolState("b", 8, 0)]
    teams = [TeamState("red", 0, 0, limit[0], limit[1]), TeamState("blue", 0, 0)]
    decisions = decide(Snapshot(pools, teams, waiting_jobs))
    assert sorted(decision.job_id for decision in decisions) == sorted(job.job_id for job in waiting_jobs)
    started = {decision.job_id for decision in decisions if decision.admitted}
    for state in pools:
        here = [job for job in waiting_jobs if job.job_id in started and job.pool_id == state.id]
        total = state.used + sum(job.slots for job in here)
        assert total <= state.slots or (len(here) == 1 and state.used == 0)
    red = [job for job in waiting_jobs if job.job_id in started and job.team_id == "red"]
    assert limit[0] is None or len(red) <= limit[0]
    assert limit[1] is None or sum(job.slots for job in red) <= limit[1]


@given(st.lists(jobs, max_size=12, unique_by=lambda job: job.job_id))
def test_the_order_of_the_snapshot_decides_nothing(waiting_jobs: list[Waiting]) -> None:
    pools, teams = [PoolState("a", 4, 0), PoolState("b", 4, 2)], [TeamState("red", 0, 0), TeamState("blue", 0, 0)]
    forwards = decide(Snapshot(pools, teams, waiting_jobs))
    backwards = decide(Snapshot(pools, teams, waiting_jobs[::-1]))
    assert forwards == backwards
