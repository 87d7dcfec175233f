"""Decide from a snapshot which queued jobs start and which running jobs are preempted. Pure: no Django, no clock.

One admission cycle visits the queued jobs in the order of `order.py`. Each is checked against the limits and quotas on
its path in the tree (`tree.py`), its budgets, its pool, and the reservations of jobs before it (`reservations.py`). The
first job that a pool, a node or the tree lacks capacity for gets a reservation, and may preempt others
(`preemption.py`).

Free capacity only shrinks within a cycle, so a rejection also applies to later jobs that request as much in the same
place. The decisions do not depend on the order of a snapshot's sequences.
"""

from collections.abc import Iterable, Sequence

from athanor.quotas.capacity import Constraint
from athanor.scheduling.policy import rejections
from athanor.scheduling.policy.cluster_state import ClusterState, Held
from athanor.scheduling.policy.order import NEVER, Candidate, Order, effective_priority
from athanor.scheduling.policy.preemption import choose_victims
from athanor.scheduling.policy.rejections import Rejection
from athanor.scheduling.policy.reservations import Reservation, reserve
from athanor.scheduling.policy.snapshot import Blocker, Budget, Decision, Settings, Snapshot, Waiting

HOLDERS_NAMED = 20


def decide(snapshot: Snapshot) -> list[Decision]:
    """Return one decision for each queued job, in the order in which they were considered; held jobs come last."""
    return Cycle(ClusterState.of(snapshot), snapshot.settings, snapshot.budgets).decisions(snapshot.waiting)


class Cycle:
    """One admission cycle at a moment of the state's clock. Admissions and preemptions are recorded in the state."""

    def __init__(
        self,
        state: ClusterState,
        settings: Settings,
        budgets: Sequence[Budget] = (),
        now: int = 0,
        *,
        names_holders: bool = True,
    ) -> None:
        self.state = state
        self.names_holders = names_holders
        self.settings = settings
        self.now = now
        self.tree = state.tree
        self.usage = state.usage
        self.pools = state.pools
        self.used = state.used
        self.budgets = {budget.id: budget for budget in budgets if budget.hard}
        self.left = {budget.id: budget.available for budget in budgets if budget.hard}
        # Reservations of jobs that a pool or the tree lacks capacity for, and of those that a node below the root
        # limits; one per scope and pool.
        self.reservations: list[Reservation] = []
        self.reservations_below: dict[int, list[Reservation]] = {}
        self.heads: set[tuple[int, int]] = set()
        # Where rejected jobs that wait for capacity have precedence over later ones.
        self.before_pools: set[int] = set()
        self.before_accelerators: set[str] = set()
        self.before_limits: set[int] = set()
        self._lines_seen: set[tuple[int, int]] = set()
        self.positions = [0] * len(self.pools)
        self._rejections: dict[tuple[int, int, int, bool], Rejection] = {}
        self._blocked_by: dict[tuple[int, int, int, int], Reservation] = {}
        self._holders: dict[tuple[str, int, str], rejections.Holders] = {}
        self._borrowers: dict[tuple[int, str], tuple[int, int]] = {}

    def decisions(self, waiting: Iterable[Waiting]) -> list[Decision]:
        """Return a decision for each waiting job."""
        on_hold: list[Decision] = []
        candidates: list[Candidate] = []
        unschedulable: list[Candidate] = []
        for job in sorted(waiting, key=lambda job: job.job_id):
            pool = self.state.pool_index[job.pool]
            if job.hold is not None:
                blocker = Blocker("hold", job.job_id, job.job_id)
                on_hold.append(Decision(job.job_id, job.hold.reason, job.hold.detail, "", blocker))
            elif not self.pools[pool].enabled:
                on_hold.append(self._reject(job, rejections.pool_disabled(self.pools[pool]), pool))
            else:
                candidate = self._candidate(job, pool)
                (unschedulable if self._is_unschedulable(candidate) else candidates).append(candidate)
        shares = self.state.shares if self.settings.fair_share else None
        order = self.order = Order(self.tree, self.usage, shares, candidates)
        made = []
        while (candidate_ := order.next()) is not None:
            made.append(self._consider(candidate_))
            order.settle(candidate_)
        made.extend(self._consider(candidate) for candidate in unschedulable)
        return made + on_hold

    def _candidate(self, job: Waiting, pool: int) -> Candidate:
        of = self.pools[pool]
        slots = min(job.slots, of.size) or job.slots  # a pool without nodes has room for no job
        lasts = NEVER if job.lasts_seconds is None else job.lasts_seconds
        ends = NEVER if job.lasts_seconds is None else self.now + job.lasts_seconds
        leaf = self.tree.index[job.node]
        return Candidate(job, leaf, pool, of.accelerator, slots, lasts, ends, effective_priority(job, self.settings))

    def _is_unschedulable(self, candidate: Candidate) -> bool:
        """Return whether it could not start even if everything ended: it must not block others of its team either."""
        slots = candidate.slots
        if slots > self.pools[candidate.pool].usable or slots > self._capacity(candidate):
            return True
        return bool(candidate.job.costs) and self._budget_short(candidate) is not None

    def _capacity(self, candidate: Candidate) -> int:
        return self.state.capacity(candidate.leaf, candidate.accelerator)

    def _consider(self, candidate: Candidate) -> Decision:
        job, pool = candidate.job, candidate.pool
        gang = job.nodes > 1
        key = (candidate.leaf, pool, candidate.slots, gang)
        rejection = self._rejections.get(key)
        if rejection is None:
            rejection = self._find_rejection(candidate)
            if rejection is not None:
                self._rejections[key] = rejection
        if rejection is not None and not rejection.waits:
            return self._reject(job, rejection, pool)
        short = self._budget_short(candidate) if job.costs else None
        if short is not None:
            # A budget can reject what the quotas admit. With both, the quota is named; nothing is reserved for the job.
            return self._reject(job, rejection if rejection is not None else short, pool)
        if rejection is None:
            rejection = self._check_reservations(candidate)
            if rejection is not None:
                self._first_in_line(candidate)
                return self._reject(job, rejection, pool)
            self._admit(candidate)
            return Decision(job.job_id)
        scope = rejection.scope
        certain = self._first_in_line(candidate)
        if (scope, pool) in self.heads:
            return self._reject(job, rejection, pool)
        self.heads.add((scope, pool))
        victims = self._choose_victims(candidate) if self.settings.preempt else None
        if victims is not None:
            scope = -1  # the victims free capacity everywhere it waits: reserve that too
        reservation = self._reserve(candidate, scope, freed=victims is not None)
        promised = certain and scope < 0 and reservation.starts < NEVER
        starts = max(0, reservation.starts - self.now) if promised else None
        return self._reject(job, rejection, pool, victims or (), starts)

    def _reject(
        self, job: Waiting, rejection: Rejection, pool: int, victims: tuple[str, ...] = (), starts: int | None = None
    ) -> Decision:
        self.positions[pool] += 1
        unblocks = rejection.unblocks
        if victims:
            unblocks = f"{len(victims)} running job{'s were' if len(victims) > 1 else ' was'} asked to make room."
        position = self.positions[pool]
        return Decision(
            job.job_id, rejection.reason, rejection.detail, unblocks, rejection.blocker, victims, position, starts
        )

    def _find_rejection(self, candidate: Candidate) -> Rejection | None:
        """Return why the tree or the pool lacks capacity for it, or None."""
        leaf, accelerator, slots = candidate.leaf, candidate.accelerator, candidate.slots
        capacity = self._capacity(candidate)
        if slots > capacity:
            return rejections.exceeds_capacity(self.tree.nodes[leaf], accelerator, capacity, slots)
        pool = self.pools[candidate.pool]
        constraint = self.usage.first_constraint(leaf, accelerator, slots) if slots <= pool.usable else None
        if constraint is not None:
            return self._tree_rejection(candidate, constraint)
        free = pool.usable - self.used[candidate.pool]
        if slots <= free:
            return None
        holders = self._holders_of("pool", candidate.pool, "")
        return rejections.pool_full(pool, free, slots, candidate.job.nodes, holders)

    def _tree_rejection(self, candidate: Candidate, constraint: Constraint) -> Rejection:
        accelerator, slots = candidate.accelerator, candidate.slots
        node = self.tree.nodes[constraint.node]
        if constraint.kind == "jobs":
            holders = self._holders_of("limit", constraint.node, "")
            return rejections.limit_of_jobs(node, self.usage.jobs[constraint.node], holders, constraint.node)
        if constraint.kind == "slots":
            holders = self._holders_of("limit", constraint.node, "")
            return rejections.limit_of_slots(node, self.usage.slots[constraint.node], slots, holders, constraint.node)
        quota = self.tree.quotas[accelerator]
        most = quota.most[constraint.node]
        arriving = slots - self._local_slots_below(candidate, constraint.node)
        figures = (self.usage.quota_slots[accelerator][constraint.node], most, most - quota.subtree[constraint.node])
        scope = -1 if self.tree.parents[constraint.node] < 0 else constraint.node
        holders = self._holders_of("quota", constraint.node, accelerator)
        others = self._borrowed_by_others(candidate, constraint.node)
        return rejections.quota(node, accelerator, figures, arriving, others, holders, scope)

    def _local_slots_below(self, candidate: Candidate, node: int) -> int:
        """Return the slots that nodes below `node` can take from their unlent quota, which others cannot use."""
        quota = self.tree.quotas[candidate.accelerator]
        used = self.usage.quota_slots[candidate.accelerator]
        below = self.tree.below(node, candidate.leaf)
        return sum(max(0, quota.local[number] - used[number]) for number in below)

    def _budget_short(self, candidate: Candidate) -> Rejection | None:
        for budget_id, cost in candidate.job.costs:
            left = self.left.get(budget_id)
            if left is not None and cost > left:
                return rejections.budget(self.budgets[budget_id], left, cost)
        return None

    def _binding(self, candidate: Candidate) -> list[Reservation]:
        found = [reservation for reservation in self.reservations if reservation.binds(candidate)]
        for number in self.tree.paths[candidate.leaf]:
            found.extend(self.reservations_below.get(number, ()))
        return found

    def _check_reservations(self, candidate: Candidate) -> Rejection | None:
        """Return a rejection that names the job it would delay; without one, book it in every reservation."""
        if not self.reservations and not self.reservations_below:
            return None
        key = (candidate.leaf, candidate.pool, candidate.slots, candidate.lasts)
        before = self._blocked_by.get(key)
        if before is None:
            binding = self._binding(candidate)
            before = next((reservation for reservation in binding if not reservation.allows(candidate)), None)
            if before is None:
                for reservation in binding:
                    reservation.book(candidate)
                return None
            self._blocked_by[key] = before
        head = before.head.job.job_id
        return rejections.not_in_turn(head, head, endless=candidate.lasts == NEVER, for_limit=before.top >= 0)

    def _admit(self, candidate: Candidate) -> None:
        job = candidate.job
        self.state.hold(
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
        """Return whether no earlier job waits for the same capacity, so that its start can be promised."""
        if (candidate.leaf, candidate.pool) in self._lines_seen:
            return False
        self._lines_seen.add((candidate.leaf, candidate.pool))
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

    def _choose_victims(self, candidate: Candidate) -> tuple[str, ...] | None:
        """Preempt running jobs for it and return their ids. None if that would not free enough."""
        free = self.pools[candidate.pool].usable - self.used[candidate.pool]
        gone = self.order.borrowers_went_before(candidate)
        binding = self._binding(candidate)
        held = self.state.held.values()
        victims = choose_victims(candidate, self.usage, free, held, binding, self.settings, self.now, gone)
        for one in victims or ():
            one.ends, one.leaving = self.now, True
        return None if victims is None else tuple(sorted(one.job_id for one in victims))

    def _reserve(self, candidate: Candidate, scope: int, *, freed: bool) -> Reservation:
        """Reserve capacity for it, and its budget, which time does not free.

        `freed`: the jobs that are leaving free enough, so that no other job may take what they leave.
        """
        self._charge(candidate)
        pool = self.pools[candidate.pool]
        free = pool.usable - self.used[candidate.pool]
        if freed:
            leaving = [one for one in self.state.held.values() if one.leaving]
            made = reserve(candidate, self.usage, free, leaving, (), scope)
        else:
            held = self.state.held.values() if scope < 0 else self.state.held_below(scope)
            made = reserve(candidate, self.usage, free, held, self._binding(candidate), scope)
        made.closed = not self.settings.backfill
        (self.reservations if scope < 0 else self.reservations_below.setdefault(scope, [])).append(made)
        return made

    def _holders_of(self, kind: str, number: int, accelerator: str) -> rejections.Holders:
        """Return the largest holders of what is lacking: in a pool, or below a node (of one accelerator)."""
        if not self.names_holders:
            return ()
        key = (kind, number, accelerator)
        found = self._holders.get(key)
        if found is None:
            if kind == "pool":
                of = [one for one in self.state.held.values() if one.pool == number]
            else:
                below = self.state.held_below(number)
                of = [one for one in below if accelerator in ("", one.accelerator)]
            of.sort(key=lambda one: (-one.slots, one.job_id))
            found = self._holders[key] = tuple((one.job_id, one.slots) for one in of[:HOLDERS_NAMED])
        return found

    def _borrowed_by_others(self, candidate: Candidate, node: int) -> tuple[int, int]:
        """Return the slots that other leaves below `node` borrow, and the number of these leaves."""
        accelerator = candidate.accelerator
        found = self._borrowers.get((node, accelerator))
        if found is None:
            leaves = [leaf for leaf in self.state.held_of if node in self.tree.paths[leaf]]
            amounts = [amount for leaf in leaves if (amount := self.usage.borrowed(leaf, accelerator))]
            found = self._borrowers[node, accelerator] = (sum(amounts), len(amounts))
        own = self.usage.borrowed(candidate.leaf, accelerator)
        return (max(0, found[0] - own), max(0, found[1] - (1 if own else 0)))
