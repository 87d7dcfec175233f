"""Explain to a queued job's team why it waits: the blocker, who holds what it lacks, what would unblock it.

Team names and sums of slots are visible to everyone (one installation is one organisation), job ids only to their team.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from athanor.scheduling.policy.snapshot import Blocker, Decision, Snapshot

MAX_HOLDERS = 20


class Holders(NamedTuple):
    """Owners of jobs: (leaf, its name) of those that hold slots, the leaf of those that wait."""

    leaves: Mapping[str, tuple[str, str]]
    waiting: Mapping[str, str]


def holders(snapshot: Snapshot) -> Holders:
    """Return the nodes and their names of the jobs that hold slots, and the nodes of waiting jobs."""
    names = {node.id: node.name for node in snapshot.nodes}
    return Holders(
        {holding.job_id: (holding.node, names[holding.node]) for holding in snapshot.holdings},
        {job.job_id: job.node for job in snapshot.waiting},
    )


def facts(decision: Decision, leaf: str, of: Holders) -> dict[str, Any]:
    """Return the content of Job.waiting. `leaf`: the leaf of the job's own team."""
    blocker = decision.blocker
    explanation: dict[str, Any] = {
        "unblocks": decision.unblocks,
        "position": decision.position,
        "starts_in_seconds": decision.starts_in_seconds,
        "blocker": None,
    }
    if blocker is not None:
        slots: dict[str, int] = {}
        own = []
        for job_id, held in blocker.holders:
            holder, name = of.leaves.get(job_id, ("", ""))
            if holder:
                slots[name] = slots.get(name, 0) + held
            if holder == leaf:
                own.append(job_id)
        ranked = sorted(slots.items(), key=lambda each: (-each[1], each[0]))[:MAX_HOLDERS]
        explanation["blocker"] = {
            "kind": blocker.kind,
            "name": _name(blocker, leaf, of),
            "lacking": blocker.lacking,
            "held_by": [{"team": name, "slots": held} for name, held in ranked],
            "own_jobs": own[:MAX_HOLDERS],
        }
    return explanation


def _name(blocker: Blocker, leaf: str, of: Holders) -> str:
    """Return the blocker's name; the next job is named to its own team only."""
    if blocker.kind == "turn" and of.waiting.get(blocker.id) != leaf:
        return "an earlier job of another team"
    return blocker.name
