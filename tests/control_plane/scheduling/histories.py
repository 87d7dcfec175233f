"""Random trees, pools and histories: jobs come, start as the policy says, are asked to leave, end; quotas are edited.

Every figure comes from one `random.Random`: a seed repeats a history, hypothesis shrinks one.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from athanor.jobs.reasons import Reason
from athanor.quotas.capacity import CapacityGrant, CapacityNode
from athanor.scheduling.policy.cycle import decide
from athanor.scheduling.policy.snapshot import Budget, Decision, Hold, Holding, Pool, Settings, Snapshot, Waiting

ACCELERATORS = ("h100", "a100")
PRIORITIES = (-10, 0, 0, 0, 10)
Draw = random.Random


def grant(draw: Draw) -> CapacityGrant:
    limits = [draw.choice([None, draw.randint(0, 6)]) for _ in range(2)]
    return CapacityGrant(draw.randint(0, 8), *limits)


def quota_node(draw: Draw, name: str, parent: str | None) -> CapacityNode:
    granted = [accelerator for accelerator in ACCELERATORS if draw.random() < 0.45]
    return CapacityNode(
        name,
        name,
        parent,
        weight=draw.choice([0.5, 1.0, 1.0, 2.0]),
        grants={accelerator: grant(draw) for accelerator in granted},
        max_running_jobs=draw.randint(1, 4) if draw.random() < 0.15 else None,
        max_slots=draw.randint(1, 10) if draw.random() < 0.15 else None,
        recent={"h100": draw.randint(0, 8) / 2} if draw.random() < 0.3 else {},
    )


def tree(draw: Draw) -> list[CapacityNode]:
    """Return a random tree: a root, up to three levels below it, up to a dozen nodes."""
    nodes = [quota_node(draw, "organisation", None)]
    depths = {"organisation": 1}
    for number in range(draw.randint(1, 11)):
        parent = draw.choice([name for name, depth in depths.items() if depth < 4])
        name = f"node-{number}"
        nodes.append(quota_node(draw, name, parent))
        depths[name] = depths[parent] + 1
    return nodes


def leaves(nodes: list[CapacityNode]) -> list[str]:
    parents = {node.parent for node in nodes}
    return [node.id for node in nodes if node.id not in parents]


def pools(draw: Draw) -> list[Pool]:
    made = []
    for number in range(draw.randint(1, 3)):
        size = draw.randint(1, 12)
        slots = size if draw.random() < 0.8 else draw.randint(0, size)
        spare = draw.randint(0, size - 1) if draw.random() < 0.3 else 0
        made.append(Pool(f"pool-{number}", f"pool-{number}", draw.choice(ACCELERATORS), slots, size, spare=spare))
    return made


def settings(draw: Draw) -> Settings:
    return Settings(
        fair_share=draw.random() < 0.7,
        age_step_seconds=draw.choice([0, 50, 500]),
        backfill=draw.random() < 0.8,
        preempt=draw.random() < 0.8,
        protected_seconds=draw.choice([0, 0, 20, 100]),
    )


@dataclass
class Run:
    job: Waiting
    began: int
    ends: int
    leaves_at: int | None = None
    saved_at: int = 0


@dataclass
class History:
    """What is so at `now`. `step` lets something happen; `decided` asks the policy and does as it says."""

    draw: Draw
    nodes: list[CapacityNode]
    pools: list[Pool]
    settings: Settings
    budgets: list[Budget] = field(default_factory=list)
    now: int = 0
    number: int = 0
    waiting: dict[str, Waiting] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    running: dict[str, Run] = field(default_factory=dict)
    preemptions: dict[str, int] = field(default_factory=dict)

    @classmethod
    def random(cls, draw: Draw) -> "History":
        budgets = [Budget("b", "b", draw.randint(0, 60), hard=draw.random() < 0.7)] if draw.random() < 0.4 else []
        history = cls(draw, tree(draw), pools(draw), settings(draw), budgets)
        for _ in range(draw.randint(1, 10)):
            history.arrive()
        return history

    def arrive(self, **fields: object) -> Waiting:
        draw, self.number = self.draw, self.number + 1
        job = Waiting(
            f"job-{self.number:06}",
            draw.choice(leaves(self.nodes)),
            draw.choice(self.pools).id,
            draw.choice([1, 1, 2, 2, 3, 4, 6, 8, 14]),
            draw.choice(PRIORITIES),
            lasts_seconds=draw.choice([None, *(10 * draw.randint(1, 12),) * 3]),
            nodes=draw.choice([1, 1, 2]),
            costs=tuple((budget.id, draw.randint(0, 12)) for budget in self.budgets),
            hold=Hold(Reason.NOT_BEFORE, "Later.") if draw.random() < 0.05 else None,
        )
        job = replace(job, **fields)  # type: ignore[arg-type]
        self.waiting[job.job_id] = job
        self.since[job.job_id] = self.now
        return job

    def step(self) -> None:
        """Advance the time; let jobs end, leave and arrive, and an administrator edit quotas."""
        draw = self.draw
        self.pass_time(draw.choice([0, 1, 10, 10, 30, 100]))
        for _ in range(draw.choice([0, 0, 1, 2, 4])):
            self.arrive()
        if draw.random() < 0.15:
            number = draw.randrange(len(self.nodes))
            edited = quota_node(draw, self.nodes[number].id, self.nodes[number].parent)
            self.nodes[number] = edited
        if draw.random() < 0.1:
            number = draw.randrange(len(self.pools))
            pool = self.pools[number]
            self.pools[number] = replace(
                pool, slots=draw.randint(0, pool.size), enabled=draw.random() < 0.8, note="Some nodes are down."
            )
        if draw.random() < 0.2:
            self.waiting = {name: replace(job, hold=None) for name, job in self.waiting.items()}

    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        for job_id, run in list(self.running.items()):
            if run.ends <= self.now:
                del self.running[job_id]
            elif run.leaves_at is not None and run.leaves_at <= self.now:
                del self.running[job_id]
                self.waiting[job_id] = run.job
                self.since[job_id] = self.now

    def snapshot(self) -> Snapshot:
        holdings = [self._holding(run) for run in self.running.values()]
        waiting = [replace(job, waited_seconds=self.now - self.since[job.job_id]) for job in self.waiting.values()]
        used = {pool.id: 0 for pool in self.pools}
        for holding in holdings:
            used[holding.pool] += holding.slots
        return Snapshot(list(self.nodes), list(self.pools), holdings, waiting, list(self.budgets), self.settings)

    def _holding(self, run: Run) -> Holding:
        lasts = run.job.lasts_seconds
        return Holding(
            run.job.job_id,
            run.job.node,
            run.job.pool,
            run.job.slots,
            run.job.priority,
            ran_seconds=self.now - run.began,
            ends_in_seconds=None if lasts is None else max(0, run.began + lasts - self.now),
            unsaved_seconds=self.now - run.saved_at,
            leaving=run.leaves_at is not None,
            stoppable=self.now > run.began or self.settings.protected_seconds == 0,
            preemptions=self.preemptions.get(run.job.job_id, 0),
        )

    def decided(self, *, exact: bool = False) -> tuple[Snapshot, list[Decision]]:
        """`exact`: jobs that start take just as long as they may."""
        snapshot = self.snapshot()
        decisions = decide(snapshot)
        for decision in decisions:
            if decision.admitted:
                self._start(decision.job_id, exact)
            for victim in decision.victims:
                run = self.running[victim]
                run.leaves_at = self.now + self.draw.choice([1, 5, 30])
                self.preemptions[victim] = self.preemptions.get(victim, 0) + 1
        return snapshot, decisions

    def _start(self, job_id: str, exact: bool) -> None:
        job = self.waiting.pop(job_id)
        most = job.lasts_seconds or 200
        lasts = most if exact else self.draw.randint(1, most)
        self.running[job_id] = Run(job, self.now, self.now + lasts, saved_at=self.now)
        for number, budget in enumerate(self.budgets):
            cost = dict(job.costs).get(budget.id, 0)
            self.budgets[number] = replace(budget, available=budget.available - cost)

    def next_end(self) -> int | None:
        moments = [min(run.ends, run.leaves_at or run.ends) for run in self.running.values()]
        return min(moments, default=None)


def steps(history: History, count: int) -> Iterator[tuple[Snapshot, list[Decision]]]:
    for _ in range(count):
        yield history.decided()
        history.step()
