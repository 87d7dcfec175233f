"""Decides, over a snapshot, which waiting jobs start, and whom to ask to make room. Pure: no Django, no clock.

One pass over the waiting jobs in the order of `order.py`. Each is held against the limits and quotas of its path in
the tree (`tree.py`), its budgets, its pool, and what is kept for jobs before it (`reservations.py`); the first that a
pool, a node or the tree has no room for gets a reservation, and may ask others to make room (`preemption.py`).

Room only shrinks within a pass, so what was once refused is refused to whoever asks for as much in the same place.
The order in which a snapshot lists things decides nothing.
"""

from collections.abc import Iterable, Sequence

from athanor.scheduling import wording
from athanor.scheduling.order import NEVER, Candidate, Order, effective_priority
from athanor.scheduling.preemption import choose_victims
from athanor.scheduling.reservations import Reservation, reserve
from athanor.scheduling.snapshot import Blocker, Budget, Decision, Settings, Snapshot, Waiting
from athanor.scheduling.standing import Held, Standing
from athanor.scheduling.tree import Wall
from athanor.scheduling.wording import Verdict

HOLDERS_NAMED = 20


def decide(snapshot: Snapshot) -> list[Decision]:
    """One decision for each waiting job, in the order in which they were considered; those on hold come last."""
    return Pass(Standing.of(snapshot), snapshot.settings, snapshot.budgets).decisions(snapshot.waiting)


class Pass:
    """One pass at a moment of the standing's clock. Who starts, and who is asked to leave, is noted in the standing."""

    def __init__(
        self,
        standing: Standing,
        settings: Settings,
        budgets: Sequence[Budget] = (),
        now: int = 0,
        *,
        names_holders: bool = True,
    ) -> None:
        self.standing = standing
        self.names_holders = names_holders
        self.settings = settings
        self.now = now
        self.tree = standing.tree
        self.usage = standing.usage
        self.pools = standing.pools
        self.used = standing.used
        self.budgets = {budget.id: budget for budget in budgets if budget.hard}
        self.left = {budget.id: budget.available for budget in budgets if budget.hard}
        # What is kept: for those that a pool or the whole tree has no room for, and for those that a node has not; one
        # for each such scope and pool.
        self.kept: list[Reservation] = []
        self.kept_at: dict[int, list[Reservation]] = {}
        self.heads: set[tuple[int, int]] = set()
        # Of those refused so far that wait for room: where they could come before a later one.
        self.before_pools: set[int] = set()
        self.before_accelerators: set[str] = set()
        self.before_limits: set[int] = set()
        self._in_line: set[tuple[int, int]] = set()
        self.positions = [0] * len(self.pools)
        self._refused: dict[tuple[int, int, int, bool], Verdict] = {}
        self._passing: dict[tuple[int, int, int, int], Reservation] = {}
        self._holders: dict[tuple[str, int, str], wording.Holders] = {}
        self._borrowers: dict[tuple[int, str], tuple[int, int]] = {}

    def decisions(self, waiting: Iterable[Waiting]) -> list[Decision]:
        aside: list[Decision] = []
        candidates: list[Candidate] = []
        hopeless: list[Candidate] = []
        for job in sorted(waiting, key=lambda job: job.job_id):
            pool = self.standing.pool_index[job.pool]
            if job.hold is not None:
                blocker = Blocker("hold", job.job_id, job.job_id)
                aside.append(Decision(job.job_id, job.hold.reason, job.hold.detail, "", blocker))
            elif not self.pools[pool].enabled:
                aside.append(self._refusal(job, wording.pool_disabled(self.pools[pool]), pool))
            else:
                candidate = self._candidate(job, pool)
                (hopeless if self._is_hopeless(candidate) else candidates).append(candidate)
        shares = self.standing.shares if self.settings.fair_share else None
        order = self.order = Order(self.tree, self.usage, shares, candidates)
        made = []
        while (candidate_ := order.next()) is not None:
            made.append(self._consider(candidate_))
            order.settle(candidate_)
        made.extend(self._consider(candidate) for candidate in hopeless)
        return made + aside

    def _candidate(self, job: Waiting, pool: int) -> Candidate:
        of = self.pools[pool]
        slots = min(job.slots, of.size) if of.size > 0 else job.slots
        lasts = NEVER if job.lasts_seconds is None else job.lasts_seconds
        ends = NEVER if job.lasts_seconds is None else self.now + job.lasts_seconds
        leaf = self.tree.index[job.node]
        return Candidate(job, leaf, pool, of.accelerator, slots, lasts, ends, effective_priority(job, self.settings))

    def _is_hopeless(self, candidate: Candidate) -> bool:
        """Whether it cannot start whatever ends: it must not stand before others of its team either."""
        slots = candidate.slots
        if slots > self.pools[candidate.pool].slots or slots > self._capacity(candidate):
            return True
        return bool(candidate.job.costs) and self._budget_short(candidate) is not None

    def _capacity(self, candidate: Candidate) -> int:
        return self.standing.capacity(candidate.leaf, candidate.accelerator)

    def _consider(self, candidate: Candidate) -> Decision:
        job, pool = candidate.job, candidate.pool
        gang = job.nodes > 1
        key = (candidate.leaf, pool, candidate.slots, gang)
        verdict = self._refused.get(key)
        if verdict is None:
            verdict = self._judge(candidate)
            if verdict is not None:
                self._refused[key] = verdict
        if verdict is not None and not verdict.waits:
            return self._refusal(job, verdict, pool)
        short = self._budget_short(candidate) if job.costs else None
        if short is not None:
            # What no quota refuses a budget may; with both, the quota is named, but nothing is kept for the job.
            return self._refusal(job, verdict if verdict is not None else short, pool)
        if verdict is None:
            verdict = self._wait_for_turn(candidate)
            if verdict is not None:
                self._first_in_line(candidate)
                return self._refusal(job, verdict, pool)
            self._admit(candidate)
            return Decision(job.job_id)
        scope = verdict.scope
        certain = self._first_in_line(candidate)
        if (scope, pool) in self.heads:
            return self._refusal(job, verdict, pool)
        self.heads.add((scope, pool))
        victims = self._make_room(candidate) if self.settings.preempt else None
        if victims is not None:
            scope = -1  # who leaves makes room for it in all that it waits for: that is kept for it too
        reservation = self._keep(candidate, scope, freed=victims is not None)
        promised = certain and scope < 0 and reservation.starts < NEVER
        starts = max(0, reservation.starts - self.now) if promised else None
        return self._refusal(job, verdict, pool, victims or (), starts)

    def _refusal(
        self, job: Waiting, verdict: Verdict, pool: int, victims: tuple[str, ...] = (), starts: int | None = None
    ) -> Decision:
        self.positions[pool] += 1
        unblocks = verdict.unblocks
        if victims:
            unblocks = f"{len(victims)} running job{'s were' if len(victims) > 1 else ' was'} asked to make room."
        position = self.positions[pool]
        return Decision(
            job.job_id, verdict.reason, verdict.detail, unblocks, verdict.blocker, victims, position, starts
        )

    def _judge(self, candidate: Candidate) -> Verdict | None:
        """What of tree and pool has no room for it, or None."""
        leaf, accelerator, slots = candidate.leaf, candidate.accelerator, candidate.slots
        capacity = self._capacity(candidate)
        if slots > capacity:
            return wording.never(self.tree.nodes[leaf], accelerator, capacity, slots)
        pool = self.pools[candidate.pool]
        wall = self.usage.wall(leaf, accelerator, slots) if slots <= pool.slots else None
        if wall is not None:
            return self._verdict_of_tree(candidate, wall)
        free = pool.slots - self.used[candidate.pool]
        if slots <= free:
            return None
        holders = self._named("pool", candidate.pool, "")
        return wording.pool_full(pool, max(0, free), slots, candidate.job.nodes, holders)

    def _verdict_of_tree(self, candidate: Candidate, wall: Wall) -> Verdict:
        accelerator, slots = candidate.accelerator, candidate.slots
        node = self.tree.nodes[wall.node]
        if wall.kind == "jobs":
            holders = self._named("limit", wall.node, "")
            return wording.limit_of_jobs(node, self.usage.jobs[wall.node], holders, wall.node)
        if wall.kind == "slots":
            holders = self._named("limit", wall.node, "")
            return wording.limit_of_slots(node, self.usage.slots[wall.node], slots, holders, wall.node)
        quota = self.tree.quotas[accelerator]
        most = quota.most[wall.node]
        arriving = slots - self._kept_below(candidate, wall.node)
        figures = (self.usage.quota_slots[accelerator][wall.node], most, most - quota.subtree[wall.node])
        scope = -1 if self.tree.parents[wall.node] < 0 else wall.node
        holders = self._named("quota", wall.node, accelerator)
        others = self._borrowed_by_others(candidate, wall.node)
        return wording.quota(node, accelerator, figures, arriving, others, holders, scope)

    def _kept_below(self, candidate: Candidate, node: int) -> int:
        """Slots that nodes below take of their own, which others cannot have."""
        quota = self.tree.quotas[candidate.accelerator]
        used = self.usage.quota_slots[candidate.accelerator]
        below = self.tree.below(node, candidate.leaf)
        return sum(max(0, quota.local[number] - used[number]) for number in below)

    def _budget_short(self, candidate: Candidate) -> Verdict | None:
        for budget_id, cost in candidate.job.costs:
            left = self.left.get(budget_id)
            if left is not None and cost > left:
                return wording.budget(self.budgets[budget_id], left, cost)
        return None

    def _binding(self, candidate: Candidate) -> list[Reservation]:
        found = [kept for kept in self.kept if kept.binds(candidate)]
        for number in self.tree.paths[candidate.leaf]:
            found.extend(self.kept_at.get(number, ()))
        return found

    def _wait_for_turn(self, candidate: Candidate) -> Verdict | None:
        """The job before it that it would delay, as a verdict; else what it takes is noted in every reservation."""
        if not self.kept and not self.kept_at:
            return None
        key = (candidate.leaf, candidate.pool, candidate.slots, candidate.lasts)
        before = self._passing.get(key)
        if before is None:
            binding = self._binding(candidate)
            before = next((kept for kept in binding if not kept.lets_pass(candidate)), None)
            if before is None:
                for kept in binding:
                    kept.book(candidate)
                return None
            self._passing[key] = before
        head = before.head.job.job_id
        return wording.turn(head, head, endless=candidate.lasts == NEVER, kept_for_limit=before.top >= 0)

    def _admit(self, candidate: Candidate) -> None:
        job = candidate.job
        self.standing.hold(
            Held(
                job.job_id,
                candidate.leaf,
                candidate.pool,
                candidate.accelerator,
                candidate.slots,
                candidate.ends,
                job.priority,
                self.now,
                self.now,
            )
        )
        self._charge(candidate)

    def _charge(self, candidate: Candidate) -> None:
        for budget_id, cost in candidate.job.costs:
            if budget_id in self.left:
                self.left[budget_id] -= cost

    def _first_in_line(self, candidate: Candidate) -> bool:
        """Whether nobody before it waits for what it waits for, so that its start can be promised."""
        if (candidate.leaf, candidate.pool) in self._in_line:
            return False
        self._in_line.add((candidate.leaf, candidate.pool))
        limits = self.tree.limited_paths[candidate.leaf]
        governed = candidate.accelerator in self.tree.quotas
        first = (
            candidate.pool not in self.before_pools
            and not (governed and candidate.accelerator in self.before_accelerators)
            and self.before_limits.isdisjoint(limits)
        )
        self.before_pools.add(candidate.pool)
        self.before_accelerators.add(candidate.accelerator)
        self.before_limits.update(limits)
        return first

    def _make_room(self, candidate: Candidate) -> tuple[str, ...] | None:
        """Asks others to leave. None when it would not have room even then."""
        free = self.pools[candidate.pool].slots - self.used[candidate.pool]
        gone = self.order.borrowers_went_before(candidate)
        binding = self._binding(candidate)
        held = self.standing.held.values()
        victims = choose_victims(candidate, self.usage, free, held, binding, self.settings, self.now, gone)
        for one in victims or ():
            one.ends, one.leaving = self.now, True
        return None if victims is None else tuple(sorted(one.job_id for one in victims))

    def _keep(self, candidate: Candidate, scope: int, *, freed: bool) -> Reservation:
        """What no later job may take from it: budgets too, which time does not give back. `freed`: who
        leaves suffices for it, so that whatever else ends, nobody takes what they leave."""
        self._charge(candidate)
        pool = self.pools[candidate.pool]
        free = pool.slots - self.used[candidate.pool]
        if freed:
            leaving = [one for one in self.standing.held.values() if one.leaving]
            made = reserve(candidate, self.usage, free, leaving, (), scope)
        else:
            held = self.standing.held.values() if scope < 0 else self.standing.held_below(scope)
            made = reserve(candidate, self.usage, free, held, self._binding(candidate), scope)
        made.closed = not self.settings.backfill
        (self.kept if scope < 0 else self.kept_at.setdefault(scope, [])).append(made)
        return made

    def _named(self, kind: str, number: int, accelerator: str) -> wording.Holders:
        """The largest of those that hold what is lacking: in a pool, or below a node (of one accelerator)."""
        if not self.names_holders:
            return ()
        key = (kind, number, accelerator)
        found = self._holders.get(key)
        if found is None:
            if kind == "pool":
                of = [one for one in self.standing.held.values() if one.pool == number]
            else:
                below = self.standing.held_below(number)
                of = [one for one in below if accelerator in ("", one.accelerator)]
            of.sort(key=lambda one: (-one.slots, one.job_id))
            found = self._holders[key] = tuple((one.job_id, one.slots) for one in of[:HOLDERS_NAMED])
        return found

    def _borrowed_by_others(self, candidate: Candidate, node: int) -> tuple[int, int]:
        """Slots that other leaves below `node` use beyond their own, and how many leaves."""
        accelerator = candidate.accelerator
        found = self._borrowers.get((node, accelerator))
        if found is None:
            leaves = [leaf for leaf in self.standing.held_of if node in self.tree.paths[leaf]]
            amounts = [amount for leaf in leaves if (amount := self.usage.borrowed(leaf, accelerator))]
            found = self._borrowers[node, accelerator] = (sum(amounts), len(amounts))
        own = self.usage.borrowed(candidate.leaf, accelerator)
        return (max(0, found[0] - own), max(0, found[1] - (1 if own else 0)))
