"""An oracle of admission decisions: simple checks that share no code with the policy."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from athanor.jobs.reasons import Reason
from athanor.quotas.capacity import CapacityGrant, CapacityNode
from athanor.scheduling.policy.snapshot import Decision, Holding, Snapshot, Waiting

Key = tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A job that holds slots, or would hold them if it were admitted."""

    job_id: str
    node: str
    pool: str
    slots: int
    ends: int | None = None
    priority: int = 0


class World:
    """The tree and the pools of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.nodes = {node.id: node for node in snapshot.nodes}
        self.children = {node.id: [one for one in snapshot.nodes if one.parent == node.id] for node in snapshot.nodes}
        self.pools = {pool.id: pool for pool in snapshot.pools}
        self.granted = {accelerator for node in snapshot.nodes for accelerator in node.grants}

    def part(self, of: Holding | Waiting) -> Part:
        size = self.pools[of.pool].size
        slots = min(of.slots, size) if size else of.slots
        ends = of.ends_in_seconds if isinstance(of, Holding) else of.lasts_seconds
        if isinstance(of, Holding) and of.leaving:
            ends = 0
        return Part(of.job_id, of.node, of.pool, slots, ends, of.priority)

    def path(self, node: str) -> list[CapacityNode]:
        found = [self.nodes[node]]
        while (parent := found[-1].parent) is not None:
            found.append(self.nodes[parent])
        return found

    def accelerator(self, part: Part) -> str:
        return self.pools[part.pool].accelerator

    def own(self, node: CapacityNode, accelerator: str) -> int:
        """Return the nominal slots of a node and those that its children lend it."""
        lent = [(self.own(child, accelerator), grant_of(child, accelerator).lend_limit)
                for child in self.children[node.id]]  # fmt: skip
        return grant_of(node, accelerator).nominal + sum(own if most is None else min(own, most) for own, most in lent)

    def kept(self, node: CapacityNode, accelerator: str) -> int:
        most = grant_of(node, accelerator).lend_limit
        return 0 if most is None else max(0, self.own(node, accelerator) - most)

    def used(self, node: CapacityNode, accelerator: str, leaves: Counter[tuple[str, str]]) -> int:
        """Return the slots that a node uses: its own, and those of its children beyond what they do not lend."""
        below = sum(self.asked_above(child, accelerator, leaves) for child in self.children[node.id])
        return leaves[node.id, accelerator] + below

    def asked_above(self, node: CapacityNode, accelerator: str, leaves: Counter[tuple[str, str]]) -> int:
        return max(0, self.used(node, accelerator, leaves) - self.kept(node, accelerator))

    def loads(self, parts: Iterable[Part]) -> dict[Key, tuple[int, int]]:
        """Return usage and limit of everything that has a limit."""
        parts = list(parts)
        leaves: Counter[tuple[str, str]] = Counter()
        for part in parts:
            leaves[part.node, self.accelerator(part)] += part.slots
        found: dict[Key, tuple[int, int]] = {}
        for pool in self.snapshot.pools:
            most = min(pool.slots, pool.size - pool.spare)
            found["pool", pool.id] = (sum(part.slots for part in parts if part.pool == pool.id), most)
        for node in self.snapshot.nodes:
            inside = [part for part in parts if any(above.id == node.id for above in self.path(part.node))]
            if node.max_running_jobs is not None:
                found["jobs", node.id] = (len(inside), node.max_running_jobs)
            if node.max_slots is not None:
                found["slots", node.id] = (sum(part.slots for part in inside), node.max_slots)
            for accelerator in sorted(self.granted):
                self._load_of_quota(node, accelerator, leaves, found)
        return found

    def _load_of_quota(
        self, node: CapacityNode, accelerator: str, leaves: Counter[tuple[str, str]], found: dict[Key, tuple[int, int]]
    ) -> None:
        grant = grant_of(node, accelerator)
        borrowable = 0 if node.parent is None else grant.borrow_limit
        if borrowable is not None:
            most = self.own(node, accelerator) + borrowable
            found["quota", node.id, accelerator] = (self.used(node, accelerator, leaves), most)
        if grant.lend_limit is None or node.parent is None:
            return
        above = self.nodes[node.parent]
        others = [child for child in self.children[above.id] if child.id != node.id]
        taken = leaves[above.id, accelerator] + sum(self.asked_above(other, accelerator, leaves) for other in others)
        most = grant_of(above, accelerator).nominal + min(self.own(node, accelerator), grant.lend_limit)
        most += sum(self.own(other, accelerator) - self.kept(other, accelerator) for other in others)
        from_above = max(0, self.used(above, accelerator, leaves) - self.own(above, accelerator))
        found["lent", node.id, accelerator] = (taken - from_above, most)

    def fits(self, parts: Sequence[Part], part: Part, keys: set[Key] | None = None) -> bool:
        """Return whether `part` exceeds no limit that it adds to, or none of `keys` if they are given."""
        before, after = self.loads(parts), self.loads([*parts, part])
        return all(after[key][0] <= max(after[key][1], before[key][0]) for key in after if keys is None or key in keys)

    def earliest(self, parts: Sequence[Part], part: Part, keys: set[Key] | None = None) -> int | None:
        """Return from when on `part` fits if all others end as late as they can, None for never."""
        for moment in sorted({0, *(other.ends for other in parts if other.ends is not None)}):
            if self.fits([one for one in parts if one.ends is None or one.ends > moment], part, keys):
                return moment
        return None

    def keys_below(self, top: str, part: Part) -> set[Key]:
        """Return limits and quotas of the part's path up to `top`, inclusive."""
        path = [node.id for node in self.path(part.node)]
        inside = set(path[: path.index(top) + 1]) if top in path else set()
        return {key for key in self.loads([]) if key[0] != "pool" and key[1] in inside}

    def borrows(self, node: CapacityNode, accelerator: str, parts: Iterable[Part]) -> int:
        leaves: Counter[tuple[str, str]] = Counter()
        for part in parts:
            leaves[part.node, self.accelerator(part)] += part.slots
        return max(0, self.used(node, accelerator, leaves) - self.own(node, accelerator))


def grant_of(node: CapacityNode, accelerator: str) -> CapacityGrant:
    return node.grants.get(accelerator, CapacityGrant())


def check(snapshot: Snapshot, decisions: Sequence[Decision]) -> None:
    """Raise AssertionError with the rule that the decisions break."""
    world = World(snapshot)
    jobs = {job.job_id: job for job in snapshot.waiting}
    assert sorted(decision.job_id for decision in decisions) == sorted(jobs), "each waiting job gets one answer"
    before = [world.part(holding) for holding in snapshot.holdings]
    started = [world.part(jobs[decision.job_id]) for decision in decisions if decision.admitted]
    _check_loads(world, before, started)
    _check_budgets(snapshot, decisions, jobs)
    _check_answers(world, decisions, jobs)
    check_preemptions(world, snapshot, decisions)
    if snapshot.settings.backfill:
        _check_nothing_idles(world, snapshot, decisions, before + started)


def _check_loads(world: World, before: list[Part], started: list[Part]) -> None:
    was, now = world.loads(before), world.loads(before + started)
    for key, (used, most) in now.items():
        assert used <= max(most, was[key][0]), f"{used} of at most {most}: {key}"


def _check_budgets(snapshot: Snapshot, decisions: Sequence[Decision], jobs: dict[str, Waiting]) -> None:
    for budget in snapshot.budgets:
        costs = {job_id: dict(job.costs).get(budget.id, 0) for job_id, job in jobs.items()}
        spent = sum(costs[decision.job_id] for decision in decisions if decision.admitted)
        assert not budget.hard or spent <= max(0, budget.available), f"{spent} of {budget.available} of {budget.name}"
    for number, decision in enumerate(decisions):
        if decision.reason is Reason.BUDGET_EXHAUSTED and jobs[decision.job_id].hold is None:
            ahead = [jobs[one.job_id] for one in decisions[: number + 1]]
            hard = [budget for budget in snapshot.budgets if budget.hard]
            wanted = [sum(dict(job.costs).get(budget.id, 0) for job in ahead) for budget in hard]
            assert any(sum_ > budget.available for sum_, budget in zip(wanted, hard, strict=True))


def _check_answers(world: World, decisions: Sequence[Decision], jobs: dict[str, Waiting]) -> None:
    positions: dict[str, list[int]] = {}
    for decision in decisions:
        job = jobs[decision.job_id]
        if job.hold is not None:
            assert decision.reason is job.hold.reason
            continue
        assert decision.admitted == (decision.blocker is None)
        if decision.admitted:
            assert world.pools[job.pool].enabled, "a disabled pool takes nothing"
            continue
        assert decision.detail and decision.unblocks, "every wait has its reason in words"
        if decision.position:
            positions.setdefault(job.pool, []).append(decision.position)
    for pool, found in positions.items():
        assert sorted(found) == list(range(1, len(found) + 1)), f"positions in {pool}: {found}"


def check_preemptions(world: World, snapshot: Snapshot, decisions: Sequence[Decision]) -> None:
    """Check each preemption in the state after the preceding ones, whose victims leave too."""
    jobs = {job.job_id: job for job in snapshot.waiting}
    started = [world.part(jobs[decision.job_id]) for decision in decisions if decision.admitted]
    before: list[Part] = []
    gone = {holding.job_id for holding in snapshot.holdings if holding.leaving}
    for decision in decisions:
        if decision.admitted:
            before.append(world.part(jobs[decision.job_id]))
        if decision.victims:
            stay = [world.part(one) for one in snapshot.holdings if one.job_id not in gone]
            part = world.part(jobs[decision.job_id])
            rest = [one for one in stay if one.job_id not in decision.victims]
            assert world.fits(rest + started, part), "the victims do not suffice, or others took what they leave"
            _check_victims(world, snapshot, decision, jobs[decision.job_id], stay + before)
            gone |= set(decision.victims)


def _check_victims(world: World, snapshot: Snapshot, decision: Decision, job: Waiting, stay: Sequence[Part]) -> None:
    """Check that victims are necessary, stoppable, not protected, and of lower priority or above their quota."""
    holdings = {holding.job_id: holding for holding in snapshot.holdings}
    settings = snapshot.settings
    assert settings.preempt
    part = world.part(job)
    asked = [holdings[victim] for victim in decision.victims]
    for holding in asked:
        least = settings.protected_seconds * 2 ** min(10, holding.preemptions)
        assert holding.stoppable and not holding.leaving, f"{holding.job_id} could not be asked"
        assert holding.ran_seconds >= least, f"{holding.job_id} ran {holding.ran_seconds} of {least} protected seconds"
    assert not world.fits(stay, part), "nobody need have been asked"
    for holding in asked:
        victim = world.part(holding)
        accelerator = world.accelerator(victim)
        if holding.node == job.node:
            assert holding.priority < job.priority, "in the same team only of lower priority"
            continue
        shared = {node.id for node in world.path(job.node)}
        below = [node for node in world.path(holding.node) if node.id not in shared]
        assert all(world.borrows(node, accelerator, stay) for node in below), f"{holding.job_id} is within its quota"
    assert falls(world, stay, asked, part), "the potential does not fall"


def falls(world: World, stay: Sequence[Part], victims: Sequence[Holding], part: Part) -> bool:
    """Return whether preemption reduces borrowed slots, or leaves them equal and takes only lower priorities."""
    gone = {holding.job_id for holding in victims}
    after = [one for one in stay if one.job_id not in gone] + [part]

    def borrowed(parts: Sequence[Part]) -> int:
        slots: Counter[tuple[str, str]] = Counter()
        for one in parts:
            slots[one.node, world.accelerator(one)] += one.slots
        return sum(
            max(0, count - world.own(world.nodes[leaf], name))
            for (leaf, name), count in slots.items()
            if name in world.granted
        )

    change = borrowed(after) - borrowed(stay)
    return change < 0 or (change == 0 and all(holding.priority < part.priority for holding in victims))


def _check_nothing_idles(
    world: World, snapshot: Snapshot, decisions: Sequence[Decision], parts: Sequence[Part]
) -> None:
    """Check that admitting any waiting job would break a rule or delay a job before it."""
    jobs = {job.job_id: job for job in snapshot.waiting}
    asked = {victim for decision in decisions for victim in decision.victims}
    parts = [Part(**{**vars(one), "ends": 0}) if one.job_id in asked else one for one in parts]
    refused: list[Decision] = []
    for decision in decisions:
        job = jobs[decision.job_id]
        if decision.admitted or job.hold is not None or decision.reason is Reason.CLUSTER_DOWN:
            continue
        if decision.reason is not Reason.BUDGET_EXHAUSTED:
            part = world.part(job)
            if world.fits(parts, part):
                ahead = [(world.part(jobs[one.job_id]), one) for one in refused]
                late = any(_delayed(world, parts, head, part, one) for head, one in ahead)
                assert late or len(ahead) > 1, f"{job.job_id} waits for nothing: {decision.detail}"
            refused.append(decision)


def _delayed(world: World, parts: Sequence[Part], head: Part, part: Part, decision: Decision) -> bool:
    """Return whether `part` delays `head`: by all that it waits for, or by the limits of its node alone."""
    blocker = decision.blocker
    keys = world.keys_below(blocker.id, head) if blocker and blocker.kind in ("quota", "limit") else None
    for only in (None, keys):
        without = world.earliest(parts, head, only)
        if without is None or world.earliest([*parts, part], head, only) != without:
            return True
    return False
