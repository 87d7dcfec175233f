"""Slots held by jobs, indexed by quota tree and pool, updated from one admission cycle to the next. Pure.

Times are integer seconds on one clock: 0 is now for a snapshot, and the beginning for a simulation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from athanor.quotas.capacity import CapacityNode, CapacityTree, Usage
from athanor.scheduling.policy.order import NEVER, Shares
from athanor.scheduling.policy.snapshot import Holding, Pool, Snapshot


@dataclass(slots=True)
class Held:
    """A job that holds slots until `ends` at the latest.

    `saved_at`: time of its last checkpoint, or of its start; `saves_every`: seconds between checkpoints since then, 0
    for none.
    """

    job_id: str
    leaf: int
    pool: int
    accelerator: str
    slots: int
    ends: int
    priority: int = 0
    began: int = 0
    saved_at: int = 0
    saves_every: int = 0
    leaving: bool = False
    stoppable: bool = False
    preemptions: int = 0

    def unsaved(self, now: int) -> int:
        """Return the seconds of work lost if it stops now."""
        return (now - self.saved_at) % self.saves_every if self.saves_every else now - self.saved_at


class ClusterState:
    """The quota tree and the pools with the slots held in them."""

    def __init__(self, nodes: Sequence[CapacityNode], pools: Sequence[Pool]) -> None:
        self.tree = CapacityTree(nodes)
        self.usage = Usage(self.tree)
        self.pools = sorted(pools, key=lambda pool: pool.id)
        self.pool_index = {pool.id: number for number, pool in enumerate(self.pools)}
        self.used = [0] * len(self.pools)
        self.totals: dict[str, int] = {}
        for pool in self.pools:
            self.totals[pool.accelerator] = self.totals.get(pool.accelerator, 0) + pool.size
        self.shares = Shares(self.tree, self.totals)
        self.held: dict[str, Held] = {}
        self.held_of: dict[int, dict[str, Held]] = {}
        self.capacities: dict[tuple[int, str], int] = {}

    @classmethod
    def of(cls, snapshot: Snapshot) -> "ClusterState":
        """Return the state with all holdings of a snapshot."""
        state = cls(snapshot.nodes, snapshot.pools)
        for holding in sorted(snapshot.holdings, key=lambda holding: holding.job_id):
            state.hold(state._held(holding))
        return state

    def _held(self, of: Holding) -> Held:
        pool = self.pool_index[of.pool]
        ends = NEVER if of.ends_in_seconds is None else max(0, of.ends_in_seconds)
        return Held(
            of.job_id,
            self.tree.index[of.node],
            pool,
            self.pools[pool].accelerator,
            min(of.slots, self.pools[pool].size),
            0 if of.leaving else ends,
            of.priority,
            -of.ran_seconds,
            -of.unsaved_seconds,
            leaving=of.leaving,
            stoppable=of.stoppable,
            preemptions=of.preemptions,
        )

    def hold(self, held: Held) -> None:
        """Add a job that holds slots."""
        self.held[held.job_id] = held
        self.held_of.setdefault(held.leaf, {})[held.job_id] = held
        self.used[held.pool] += held.slots
        self.usage.add(held.leaf, held.accelerator, held.slots)
        self.shares.add(held.leaf, held.accelerator, held.slots)

    def release(self, job_id: str) -> Held:
        """Remove a job that holds slots, and return it."""
        held = self.held.pop(job_id)
        del self.held_of[held.leaf][job_id]
        self.used[held.pool] -= held.slots
        self.usage.remove(held.leaf, held.accelerator, held.slots)
        self.shares.add(held.leaf, held.accelerator, -held.slots)
        return held

    def capacity(self, leaf: int, accelerator: str) -> int:
        """Return the most slots that one job of this leaf could get in an empty tree."""
        key = (leaf, accelerator)
        if key not in self.capacities:
            self.capacities[key] = self.tree.capacity(leaf, accelerator)
        return self.capacities[key]

    def held_below(self, node: int) -> list[Held]:
        """Return the jobs that hold slots in the subtree of a node."""
        paths = self.tree.paths
        return [held for leaf, of in self.held_of.items() if node in paths[leaf] for held in of.values()]
