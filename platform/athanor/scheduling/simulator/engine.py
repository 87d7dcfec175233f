"""Replay real or generated jobs against a quota tree, pools and settings, with the admission policy itself.

Event-driven: jobs arrive, end, or leave after a preemption. A cycle runs when something could start: immediately if no
job waits, otherwise at most once per `cycle_seconds`, over the first few jobs of each team's queue for a pool, repeated
until none of them starts. Held slots are updated between cycles, so the cost of a cycle depends on the queue only.

Pure: no Django, no clock; the same inputs give the same outcome.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from athanor.quotas.capacity import CapacityNode
from athanor.scheduling.policy.cluster_state import ClusterState, Held
from athanor.scheduling.policy.cycle import Cycle
from athanor.scheduling.policy.order import Shares
from athanor.scheduling.policy.snapshot import Decision, Pool, Settings, Waiting

MAX_CONSIDERED_JOBS = 48
REFRESH_SHARES_SECONDS = 3600
MAX_CYCLES = 100_000
LEAVING_SECONDS = 60
ARRIVES, ENDS, LEFT, PASS = range(4)


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job to replay: arrives at `at`, runs `lasts` seconds, requested at most `limit`. Ids sort by age."""

    id: str
    at: int
    node: str
    pool: str
    slots: int
    lasts: int
    limit: int | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to simulate. `checkpoint_seconds`: interval of checkpoints; preempted jobs lose newer work."""

    nodes: Sequence[CapacityNode]
    pools: Sequence[Pool]
    settings: Settings = field(default_factory=Settings)
    checkpoint_seconds: int = 1800
    cycle_seconds: int | None = None


@dataclass(slots=True)
class Record:
    """Result of one job. `waited`: seconds until its first start, None if it never started."""

    job: PastJob
    waited: int | None = None
    ran: int = 0
    lost: int = 0
    preemptions: int = 0
    ended: int | None = None


@dataclass(slots=True)
class _Live:
    record: Record
    number: int
    left: int
    began: int = 0
    since: int = 0
    round: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a simulation.

    `seconds`: from the first arrival to the last end. `used`: slot-seconds by pool. `longest_queue`: most jobs waiting
    at the same time, by node, and in total under "".
    """

    plan: Plan
    records: list[Record]
    seconds: int
    used: dict[str, int]
    longest_queue: dict[str, int]
    passes: int


def simulate(plan: Plan, jobs: Iterable[PastJob]) -> Outcome:
    """Simulate `jobs` on a plan. Raises ValueError for a job whose node or pool is not in the plan."""
    return _Engine(plan, sorted(jobs, key=lambda job: (job.at, job.id))).run()


class _Queue:
    """Queued jobs of one team for one pool, by priority and age."""

    def __init__(self) -> None:
        self.of: dict[int, list[tuple[int, str]]] = {}

    def put(self, priority: int, number: int, job_id: str) -> None:
        insort(self.of.setdefault(priority, []), (number, job_id))

    def take(self, priority: int, number: int, job_id: str) -> None:
        queue = self.of[priority]
        del queue[bisect_left(queue, (number, job_id))]
        if not queue:
            del self.of[priority]

    def first(self, count: int) -> list[str]:
        return [job_id for queue in self.of.values() for _, job_id in queue[:count]]


class _Engine:
    def __init__(self, plan: Plan, jobs: Sequence[PastJob]) -> None:
        self.plan = plan
        self.state = ClusterState(plan.nodes, plan.pools)
        self.live: dict[str, _Live] = {}
        for number, job in enumerate(jobs):
            if job.node not in self.state.tree.index or job.pool not in self.state.pool_index:
                raise ValueError(f"job {job.id}: team {job.node!r} or pool {job.pool!r} is not in the plan; add it")
            self.live[job.id] = _Live(Record(job), number, max(1, job.lasts))
        self.records = [self.live[job.id].record for job in jobs]
        span = jobs[-1].at - jobs[0].at if jobs else 0
        self.cycle = plan.cycle_seconds or max(2, span // MAX_CYCLES)
        self.events: list[tuple[int, int, str, int]] = [(job.at, ARRIVES, job.id, 0) for job in jobs]
        heapq.heapify(self.events)
        self.queues: dict[tuple[str, str], _Queue] = {}
        self.waiting: dict[str, int] = {}
        self.longest: dict[str, int] = {}
        self.recent: dict[tuple[str, str], float] = {}
        self.used: dict[str, int] = dict.fromkeys(self.state.pool_index, 0)
        self.waits = 0
        self.passes = 0
        self.due: int | None = None
        self.refreshed = 0
        self.last_pass = -self.cycle

    def run(self) -> Outcome:
        beginning = self.events[0][0] if self.events else 0
        now = beginning
        while self.events:
            now, kind, job_id, number = heapq.heappop(self.events)
            if kind == PASS:
                self.due = None
                self._pass(now)
                continue
            live = self.live[job_id]
            if kind == ARRIVES:
                self._wait(live, now)
            elif live.round != number:
                continue  # an event of an earlier run of the job
            elif kind == ENDS:
                self._stop(live, now)
                live.record.ended = now
            else:
                self._requeue(live, now)
            if self.waits and self.due is None:
                alone = kind == ARRIVES and self.waits == 1
                self.due = now if alone else max(now, self.last_pass + self.cycle)
                heapq.heappush(self.events, (self.due, PASS, "", 0))
        return Outcome(self.plan, self.records, max(1, now - beginning), self.used, self.longest, self.passes)

    def _wait(self, live: _Live, now: int) -> None:
        job = live.record.job
        live.since = now
        queue = self.queues.get((job.node, job.pool))
        if queue is None:
            queue = self.queues[job.node, job.pool] = _Queue()
        queue.put(job.priority, live.number, job.id)
        self.waits += 1
        self.waiting[job.node] = waiting = self.waiting.get(job.node, 0) + 1
        self.longest[job.node] = max(self.longest.get(job.node, 0), waiting)
        self.longest[""] = max(self.longest.get("", 0), self.waits)

    def _stop(self, live: _Live, now: int) -> int:
        """Release its slots and return how long it ran this time."""
        job, ran = live.record.job, now - live.began
        held = self.state.release(job.id)
        live.round += 1
        live.record.ran += ran
        self.used[job.pool] += ran * held.slots
        return ran

    def _requeue(self, live: _Live, now: int) -> None:
        ran = self._stop(live, now)
        lost = min(ran, ran % self.plan.checkpoint_seconds)
        live.record.lost += lost * live.record.job.slots
        live.left = max(1, live.left - (ran - lost))
        self._wait(live, now)

    def _pass(self, now: int) -> None:
        self.last_pass = now
        if now - self.refreshed >= REFRESH_SHARES_SECONDS:
            self._refresh_shares(now)
        again = True
        while again and self.waits:
            self.passes += 1
            busy = {key: queue for key, queue in self.queues.items() if queue.of}
            if len(busy) < len(self.queues):
                self.queues = busy
            count = max(1, MAX_CONSIDERED_JOBS // len(busy))
            jobs = [self._waiting(self.live[one], now) for queue in busy.values() for one in queue.first(count)]
            # Further jobs can start only where one of the considered ones did.
            again = False
            made = Cycle(self.state, self.plan.settings, (), now, names_holders=False).decisions(jobs)
            for decision in made:
                again = self._apply(decision, now) or again
            again = again and len(jobs) < self.waits

    def _waiting(self, live: _Live, now: int) -> Waiting:
        job = live.record.job
        return Waiting(
            f"{live.number:09}", job.node, job.pool, job.slots, job.priority, now - live.since, self._limit(live)
        )

    def _limit(self, live: _Live) -> int | None:
        limit = live.record.job.limit
        return None if limit is None else max(live.left, limit)

    def _apply(self, decision: Decision, now: int) -> bool:
        for victim in decision.victims:
            live = self.live[victim]
            live.record.preemptions += 1
            heapq.heappush(self.events, (now + LEAVING_SECONDS, LEFT, victim, live.round))
        if not decision.admitted:
            return False
        record = self.records[int(decision.job_id)]
        job = record.job
        live = self.live[job.id]
        self._name(decision.job_id, job.id, record)
        self.queues[job.node, job.pool].take(job.priority, live.number, job.id)
        self.waits -= 1
        self.waiting[job.node] -= 1
        if record.waited is None:
            record.waited = now - job.at
        live.began = now
        live.round += 1
        heapq.heappush(self.events, (now + live.left, ENDS, job.id, live.round))
        return True

    def _name(self, number: str, job_id: str, record: Record) -> None:
        """Replace the number that the cycle used as id by the job's id, and set what victims are chosen by."""
        held: Held = self.state.held.pop(number)
        of = self.state.held_of[held.leaf]
        del of[number]
        held.job_id = job_id
        held.stoppable = True
        held.saves_every = self.plan.checkpoint_seconds
        held.preemptions = record.preemptions
        self.state.held[job_id] = of[job_id] = held

    def _refresh_shares(self, now: int) -> None:
        """Decay past usage; current usage counts in full."""
        state = self.state
        decay = 0.5 ** ((now - self.refreshed) / max(1, self.plan.settings.half_life_seconds))
        self.refreshed = now
        using: dict[tuple[str, str], int] = {}
        for held in state.held.values():
            key = (state.tree.nodes[held.leaf].id, held.accelerator)
            using[key] = using.get(key, 0) + held.slots
        self.recent = {
            key: recent
            for key in sorted({*self.recent, *using})
            if (recent := self.recent.get(key, 0.0) * decay + using.get(key, 0) * (1 - decay)) > 1e-6
        }
        state.shares = Shares(state.tree, state.totals)
        for (node, accelerator), recent in self.recent.items():
            state.shares.add(state.tree.index[node], accelerator, recent)
        for held in state.held.values():
            state.shares.add(held.leaf, held.accelerator, held.slots)
