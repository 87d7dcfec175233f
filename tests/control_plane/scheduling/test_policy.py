"""Examples of the admission policy: which jobs start, which wait and why, which are preempted."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from athanor.jobs.reasons import Reason
from athanor.quotas.capacity import CapacityGrant, CapacityNode
from athanor.scheduling.policy.cycle import decide
from athanor.scheduling.policy.snapshot import Budget, Decision, Hold, Holding, Pool, Settings, Snapshot, Waiting

ROOT = CapacityNode("organisation", "organisation")


def team(name: str, parent: str = "organisation", grant: CapacityGrant | None = None, **fields: Any) -> CapacityNode:
    return CapacityNode(name, name, parent, grants={"h100": grant} if grant else {}, **fields)


def pool(slots: int = 8, **fields: Any) -> Pool:
    return Pool("gpu", "gpu", "h100", slots, fields.pop("size", slots), **fields)


def waits(job_id: str, node: str = "red", slots: int = 1, **fields: Any) -> Waiting:
    return Waiting(job_id, node, fields.pop("pool", "gpu"), slots, **fields)


def holds(job_id: str, node: str = "red", slots: int = 1, **fields: Any) -> Holding:
    fields = {"ran_seconds": 10_000, "unsaved_seconds": 60, **fields}
    return Holding(job_id, node, fields.pop("pool", "gpu"), slots, **fields)


def snapshot(
    waiting: Sequence[Waiting],
    holdings: Sequence[Holding] = (),
    nodes: Sequence[CapacityNode] = (),
    pools: Sequence[Pool] = (),
    **fields: Any,
) -> Snapshot:
    return Snapshot([ROOT, *(nodes or (team("red"), team("blue")))], pools or [pool()], holdings, waiting, **fields)


def decided(of: Snapshot) -> dict[str, Decision]:
    return {decision.job_id: decision for decision in decide(of)}


def admitted(of: Snapshot) -> list[str]:
    return [decision.job_id for decision in decide(of) if decision.admitted]


def test_priority_comes_before_age() -> None:
    jobs = [waits("job_1"), waits("job_2", priority=10)]
    assert admitted(snapshot(jobs, pools=[pool(1)])) == ["job_2"]


def test_who_waited_long_enough_counts_as_one_class_higher_but_never_above_high() -> None:
    day = 86_400
    jobs = [waits("job_1", priority=10), waits("job_2", waited_seconds=day), waits("job_3", priority=20)]
    assert admitted(snapshot(jobs)) == ["job_3", "job_1", "job_2"]
    jobs = [waits("job_1", waited_seconds=day), waits("job_2", priority=10), waits("job_3")]
    assert admitted(snapshot(jobs)) == ["job_1", "job_2", "job_3"]
    assert admitted(snapshot(jobs, settings=Settings(age_step_seconds=0)))[0] == "job_2"


def test_who_used_least_for_its_weight_goes_first() -> None:
    jobs = [waits("job_1", "red"), waits("job_2", "blue")]
    held = [holds("job_0", "red", 2)]
    assert admitted(snapshot(jobs, held)) == ["job_2", "job_1"]
    heavy = (team("red", weight=4.0), team("blue", recent={"h100": 1.0}))
    assert admitted(snapshot(jobs, held, heavy)) == ["job_1", "job_2"]
    assert admitted(snapshot(jobs, held, settings=Settings(fair_share=False))) == ["job_1", "job_2"]


def test_a_group_counts_as_one_against_other_groups() -> None:
    nodes = (team("research"), team("a", "research"), team("b", "research"), team("product"))
    jobs = [waits("job_1", "a", 2), waits("job_2", "b", 2), waits("job_3", "product", 2)]
    assert admitted(snapshot(jobs, [holds("job_0", "a", 2)], nodes)) == ["job_3", "job_2", "job_1"]


def test_a_large_job_at_the_head_is_not_starved_by_small_ones() -> None:
    jobs = [waits("job_1", slots=4), waits("job_2")]
    found = decided(snapshot(jobs, [holds("job_0", slots=2)], pools=[pool(4)]))
    assert [found[job].reason for job in ("job_1", "job_2")] == [Reason.WAITING_FOR_CAPACITY] * 2
    blocker = found["job_2"].blocker
    assert blocker is not None
    assert (blocker.kind, blocker.id) == ("turn", "job_1")
    assert [found[job].position for job in ("job_1", "job_2")] == [1, 2]


def test_small_jobs_that_end_in_time_fill_the_gap_before_the_head() -> None:
    jobs = [waits("job_1", slots=8), waits("job_2", lasts_seconds=100), waits("job_3", lasts_seconds=101)]
    of = snapshot(jobs, [holds("job_0", slots=4, ends_in_seconds=100)])
    assert admitted(of) == ["job_2"]
    assert decided(of)["job_1"].starts_in_seconds == 100
    assert admitted(replace(of, settings=Settings(backfill=False))) == []


def test_what_fits_beside_the_reserved_job_passes_however_long_it_takes() -> None:
    jobs = [waits("job_1", slots=6), waits("job_2", slots=2), waits("job_3", slots=2)]
    assert admitted(snapshot(jobs, [holds("job_0", slots=4, ends_in_seconds=50)])) == ["job_2"]


def test_a_job_larger_than_its_pool_runs_alone() -> None:
    assert admitted(snapshot([waits("job_1", slots=8)], pools=[pool(4)])) == ["job_1"]
    assert admitted(snapshot([waits("job_1", slots=8)], [holds("job_0")], pools=[pool(4)])) == []


def test_a_pool_that_lacks_nodes_lets_smaller_jobs_pass() -> None:
    jobs = [waits("job_1", slots=8), waits("job_2", slots=2)]
    found = decided(snapshot(jobs, pools=[pool(4, size=8, note="1 node is in quarantine.")]))
    assert found["job_2"].admitted
    assert "quarantine" in found["job_1"].detail


def test_jobs_get_all_slots_but_those_of_spare_nodes_which_replace_nodes_that_are_lost() -> None:
    jobs = [waits(f"job_{number}", slots=4) for number in range(1, 7)]
    for slots, usable in ((24, 16), (20, 16), (16, 16), (12, 12), (0, 0)):
        assert len(admitted(snapshot(jobs, pools=[pool(slots, size=24, spare=8)]))) == usable // 4


def test_a_preemption_leaves_the_spare_nodes_free_and_without_one_nobody_is_preempted() -> None:
    running = [holds("job_1", slots=8), holds("job_2", slots=8)]
    smaller = [pool(16, spare=8)]
    assert decided(snapshot([waits("job_3", slots=8)], running, pools=smaller))["job_3"].victims == ()
    urgent = decided(snapshot([waits("job_3", slots=8, priority=10)], running, pools=smaller))["job_3"]
    assert (urgent.victims, urgent.admitted) == (("job_1", "job_2"), False)


def test_a_gang_that_finds_some_room_but_not_enough_says_so() -> None:
    found = decided(snapshot([waits("job_1", slots=8, nodes=2)], [holds("job_0", slots=4)]))
    assert found["job_1"].reason is Reason.WAITING_FOR_GANG


def test_a_team_at_its_limit_waits_and_lets_others_pass() -> None:
    nodes = (team("red", max_running_jobs=1), team("blue"))
    jobs = [waits("job_1", "red"), waits("job_2", "blue")]
    found = decided(snapshot(jobs, [holds("job_0", "red")], nodes))
    assert (found["job_1"].reason, found["job_2"].reason) == (Reason.QUOTA_EXCEEDED, None)
    assert found["job_1"].detail == "1 of 1 running jobs of red."


def test_a_large_job_at_its_teams_limit_is_not_passed_by_small_ones_of_the_team_for_ever() -> None:
    nodes = (team("red", max_slots=4), team("blue"))
    jobs = [waits("job_1", "red", 4), waits("job_2", "red", lasts_seconds=10), waits("job_3", "red", lasts_seconds=99)]
    assert admitted(snapshot(jobs, [holds("job_0", "red", 2, ends_in_seconds=50)], nodes)) == ["job_2"]


def test_what_no_idle_tree_could_hold_says_that_it_never_starts_and_reserves_nothing() -> None:
    nodes = (team("red", grant=CapacityGrant(2, borrow_limit=1)), team("blue", grant=CapacityGrant(4)))
    found = decided(snapshot([waits("job_1", slots=4), waits("job_2", slots=3)], nodes=nodes))
    assert found["job_1"].reason is Reason.QUOTA_EXCEEDED
    assert "use at most 3" in found["job_1"].detail
    assert found["job_2"].admitted


def test_a_wait_for_quota_names_the_node_the_figures_and_what_others_borrowed() -> None:
    nodes = (team("red", grant=CapacityGrant(4)), team("blue", grant=CapacityGrant(4)))
    held = [holds("job_0", "blue", 6, ran_seconds=0), holds("job_9", "red", 2)]
    found = decided(snapshot([waits("job_1", "red", 2)], held, nodes, [pool(16)]))["job_1"]
    expected = (
        "8 of the 8 h100 that organisation may use are used, 2 of them borrowed by 1 other team; 2 more are needed."
    )
    assert found.detail == expected
    assert "release 2 slots" in found.unblocks
    assert found.blocker is not None
    assert found.blocker.holders == (("job_0", 6), ("job_9", 2))


def test_a_disabled_pool_and_a_hold_are_named_as_the_reason() -> None:
    held = waits("job_2", hold=Hold(Reason.NOT_BEFORE, "Tomorrow."))
    found = decided(snapshot([waits("job_1"), held], pools=[pool(enabled=False)]))
    assert found["job_1"].reason is Reason.CLUSTER_DOWN
    assert (found["job_2"].reason, found["job_2"].detail) == (Reason.NOT_BEFORE, "Tomorrow.")


def test_a_hard_budget_refuses_what_it_cannot_pay_and_keeps_what_the_head_will_need() -> None:
    budgets = [Budget("b", "march", 10, hard=True, unit="USD"), Budget("s", "soft", 0, hard=False)]
    jobs = [waits("job_1", costs=(("b", 6), ("s", 6))), waits("job_2", costs=(("b", 6),)), waits("job_3")]
    found = decided(snapshot(jobs, budgets=budgets))
    assert [found[job].reason for job in ("job_1", "job_2", "job_3")] == [None, Reason.BUDGET_EXHAUSTED, None]
    jobs = [waits("job_1", slots=8, costs=(("b", 6),)), waits("job_2", lasts_seconds=1, costs=(("b", 6),))]
    found = decided(snapshot(jobs, [holds("job_0", ends_in_seconds=9)], budgets=budgets))
    assert found["job_2"].reason is Reason.BUDGET_EXHAUSTED


def lenders(**fields: Any) -> tuple[CapacityNode, ...]:
    return (team("red", grant=CapacityGrant(4)), team("blue", grant=CapacityGrant(4)))


def test_a_team_gets_its_own_slots_back_from_who_borrowed_them_and_loses_least_work() -> None:
    held = [
        holds("job_a", "blue", 4, unsaved_seconds=600),
        holds("job_b", "blue", 2, unsaved_seconds=900),
        holds("job_c", "blue", 2, unsaved_seconds=100),
    ]
    found = decided(snapshot([waits("job_1", "red", 2, priority=-10)], held, lenders()))["job_1"]
    assert found.victims == ("job_c",)
    assert found.unblocks == "1 running job was asked to make room."
    assert found.starts_in_seconds == 0


def test_nobody_reclaims_from_a_team_within_its_own_quota() -> None:
    held = [holds("job_a", "blue", 4), holds("job_b", "red", 4)]
    nodes = (team("red", grant=CapacityGrant(4)), team("blue", grant=CapacityGrant(4)))
    found = decided(snapshot([waits("job_1", "red", 2, priority=10)], held, nodes))["job_1"]
    assert found.victims == ("job_b",), "of its own team, of lower priority"
    assert decided(snapshot([waits("job_1", "red", 2)], held, nodes))["job_1"].victims == ()


def test_age_lets_a_job_start_earlier_but_take_from_nobody() -> None:
    held = [holds("job_a", "red", 8)]
    aged = waits("job_1", "red", 2, waited_seconds=10 * 86_400)
    assert decided(snapshot([aged], held))["job_1"].victims == ()
    assert decided(snapshot([replace(aged, priority=10)], held))["job_1"].victims == ("job_a",)


def test_protected_time_doubles_with_each_preemption() -> None:
    settings = Settings(protected_seconds=600)
    for ran, before, asked in ((599, 0, False), (600, 0, True), (1199, 1, False), (1200, 1, True)):
        held = [holds("job_a", "blue", 8, ran_seconds=ran, preemptions=before)]
        found = decided(snapshot([waits("job_1", "red", 2)], held, lenders(), settings=settings))["job_1"]
        assert found.victims == (("job_a",) if asked else ()), (ran, before)


def test_when_what_could_give_way_does_not_suffice_nobody_is_asked() -> None:
    held = [holds("job_a", "blue", 6, ran_seconds=0), holds("job_b", "blue", 2)]
    assert decided(snapshot([waits("job_1", "red", 4)], held, lenders()))["job_1"].victims == ()


def test_who_leaves_already_counts_and_what_they_leave_is_kept_for_the_head() -> None:
    held = [holds("job_a", "blue", 4, leaving=True), holds("job_b", "blue", 4)]
    jobs = [waits("job_1", "red", 4), waits("job_2", "blue", 4)]
    found = decided(snapshot(jobs, held, lenders()))
    assert found["job_1"].victims == ()
    assert found["job_1"].starts_in_seconds == 0
    held[0] = replace(held[0], slots=3)
    found = decided(snapshot([*jobs[:1], waits("job_2", "blue", 1)], held, lenders()))
    assert not found["job_2"].admitted


def test_own_slots_are_given_before_any_are_borrowed_whatever_the_priority() -> None:
    jobs = [waits("job_1", "blue", 5, priority=10), waits("job_2", "red", 4, priority=-10)]
    assert admitted(snapshot(jobs, nodes=lenders())) == ["job_2"]
