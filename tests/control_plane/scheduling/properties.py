"""Properties of admission: functions of one random source that raise AssertionError."""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from pydantic import TypeAdapter

from athanor.quotas.capacity import CapacityNode, CapacityTree
from athanor.scheduling.policy.cycle import decide
from athanor.scheduling.policy.preemption import Potential, potential
from athanor.scheduling.policy.snapshot import Pool, Settings, Snapshot
from tests.control_plane.scheduling import oracle
from tests.control_plane.scheduling.histories import Draw, History, leaves, steps

SNAPSHOT = TypeAdapter(Snapshot)
CYCLES_TO_REST = 400


def nothing_is_exceeded_and_nothing_idles(draw: Draw) -> None:
    """Check quotas, limits, pools, budgets, victims, and that no job waits for nothing, by the oracle."""
    history = History.random(draw)
    for snapshot, decisions in steps(history, draw.randint(1, 8)):
        oracle.check(snapshot, decisions)


def each_preemption_lowers_the_potential(draw: Draw) -> None:
    """Check that each preemption lowers the potential with the new job in its victims' place, so none can cycle."""
    history = History.random(draw)
    history.settings = replace(history.settings, preempt=True, protected_seconds=0)
    for snapshot, decisions in steps(history, draw.randint(2, 8)):
        world, tree = oracle.World(snapshot), CapacityTree(snapshot.nodes)
        jobs = {job.job_id: job for job in snapshot.waiting}
        held = {one.job_id: world.part(one) for one in snapshot.holdings if not one.leaving}
        for decision in decisions:
            if decision.admitted:
                held[decision.job_id] = world.part(jobs[decision.job_id])
            elif decision.victims:
                before = _potential(world, tree, held.values())
                for victim in decision.victims:
                    del held[victim]
                part = world.part(jobs[decision.job_id])
                assert _potential(world, tree, [*held.values(), part]) < before, decision


def _potential(world: oracle.World, tree: CapacityTree, parts: Iterable[oracle.Part]) -> Potential:
    return potential(tree, [(tree.index[one.node], world.accelerator(one), one.slots, one.priority) for one in parts])


def the_same_snapshot_gives_the_same_decisions(draw: Draw) -> None:
    """Check that decisions depend neither on the order of the snapshot's lists nor on a round trip through JSON."""
    history = History.random(draw)
    for snapshot, decisions in steps(history, 3):
        stored = json.loads(SNAPSHOT.dump_json(snapshot))
        assert decide(SNAPSHOT.validate_python(stored)) == decisions, "replayed"
        mixed = replace(
            snapshot,
            **{
                name: draw.sample(list(getattr(snapshot, name)), len(getattr(snapshot, name)))
                for name in ("nodes", "pools", "holdings", "waiting", "budgets")
            },
        )
        assert decide(mixed) == decisions, "in another order"


def jobs_at_rest_stay_at_rest(draw: Draw) -> None:
    """Check that preemptions stop when no job arrives or ends, and that each reduces the potential."""
    history = History.random(draw)
    history.settings = replace(history.settings, preempt=True, protected_seconds=0, age_step_seconds=0)
    history.budgets = []
    for _ in range(draw.randint(0, 20)):
        history.arrive(costs=())
    history.waiting = {name: replace(job, hold=None, costs=()) for name, job in history.waiting.items()}
    preemptions = 0
    for _ in range(CYCLES_TO_REST):
        started = set(history.running)
        snapshot, decisions = history.decided()
        world = oracle.World(snapshot)
        for run in history.running.values():
            run.ends, run.job = 10**12, replace(run.job, lasts_seconds=None)  # nobody knows when it ends
        preemptions += sum(len(decision.victims) for decision in decisions)
        oracle.check_preemptions(world, snapshot, decisions)
        if all(run.leaves_at is None for run in history.running.values()) and set(history.running) == started:
            return
        history.pass_time(40)
    raise AssertionError(f"still moving after {CYCLES_TO_REST} cycles and {preemptions} preemptions")


def a_promised_start_is_kept(draw: Draw) -> None:
    """Check that backfilled jobs do not delay the head of the queue, unless jobs were inserted before it."""
    history = History.random(draw)
    history.settings = replace(history.settings, preempt=False, age_step_seconds=0, backfill=True)
    promised: dict[str, tuple[int, frozenset[str]]] = {}
    for _ in range(60):
        snapshot, decisions = history.decided(exact=True)
        ahead: set[str] = set()
        for decision in decisions:
            if decision.job_id in promised and not ahead <= promised[decision.job_id][1]:
                del promised[decision.job_id]
            if decision.admitted:
                promised_by, _ = promised.pop(decision.job_id, (history.now, None))
                assert history.now <= promised_by, f"{decision.job_id} was to start by {promised_by}, not {history.now}"
            elif decision.starts_in_seconds is not None:
                by = history.now + decision.starts_in_seconds
                promised.setdefault(decision.job_id, (by, frozenset(ahead)))
            ahead.add(decision.job_id)
        for job_id, (by, _) in promised.items():
            assert by >= history.now, f"{job_id} was to start by {by}, and it is {history.now}"
        end = history.next_end()
        if end is None:
            return
        # To the next end, or to the next moment by which somebody was to have started.
        soon = [by for by, _ in promised.values() if by > history.now]
        history.pass_time(max(1, min([end, *soon]) - history.now))
        del snapshot


def nobody_starves(draw: Draw) -> None:
    """Check that a job that needs its entire pool starts although jobs of higher priority continue to arrive."""
    size, longest, step = draw.randint(2, 8), draw.choice([20, 60]), draw.choice([100, 300])
    settings = Settings(fair_share=draw.random() < 0.5, age_step_seconds=step, backfill=draw.random() < 0.7)
    nodes = [
        CapacityNode("organisation", "organisation"),
        *(CapacityNode(f"t{n}", f"t{n}", "organisation") for n in range(3)),
    ]
    history = History(draw, nodes, [Pool("pool", "pool", "h100", size, size)], settings)
    poor = history.arrive(node="t0", pool="pool", slots=size, priority=-10, lasts_seconds=longest, hold=None)
    until = 2 * step + 3 * longest
    while poor.job_id in history.waiting:
        assert history.now <= until, f"waits since {history.now} seconds, at most {until} were right"
        while len(history.waiting) < size + 3:
            slots, lasts = draw.randint(1, size), draw.randint(1, longest)
            others = draw.choice(leaves(nodes)[1:])
            history.arrive(node=others, pool="pool", slots=slots, priority=10, lasts_seconds=lasts, hold=None)
        history.decided()
        end = history.next_end()
        assert end is not None
        history.pass_time(max(1, end - history.now))


def protected_time_is_kept(draw: Draw) -> None:
    """Check that a job runs for at least its protected seconds, doubled each time, between two preemptions."""
    history = History.random(draw)
    history.settings = replace(history.settings, preempt=True, protected_seconds=20)
    for snapshot, decisions in steps(history, 8):
        runs = {holding.job_id: holding for holding in snapshot.holdings}
        for victim in (victim for decision in decisions for victim in decision.victims):
            assert runs[victim].ran_seconds >= 20 * 2 ** runs[victim].preemptions


PROPERTIES: dict[str, Callable[[Draw], None]] = {
    check.__name__: check
    for check in (
        nothing_is_exceeded_and_nothing_idles,
        each_preemption_lowers_the_potential,
        the_same_snapshot_gives_the_same_decisions,
        jobs_at_rest_stay_at_rest,
        a_promised_start_is_kept,
        nobody_starves,
        protected_time_is_kept,
    )
}


def run(name: str, seed: int) -> None:
    PROPERTIES[name](random.Random(f"{name} {seed}"))
