"""Copies of ranks' states on other nodes: on which node each is, and which copies a resume uses. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class CopyId:
    """The copies that all ranks made after `step` steps in the same worker group: only together are they one state.

    `restart_count`, `world_size`: those of the worker group.
    """

    step: int
    restart_count: int
    world_size: int


@dataclass(frozen=True)
class RankCopies:
    """What a rank has in its own memory: usable copies, with the loss of the next step if that is known, and (step,
    reason) of those that it cannot use."""

    usable: Mapping[CopyId, float | None]
    skipped: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True)
class Choice:
    """`copy`: what all ranks continue from; None if there is nothing. `sources`: by rank of the group that made it, the
    node that holds the copy of this rank. Of a group of as many ranks, these are the ranks that lack theirs; of another
    number, all whose copies are held: each rank reads its part of the state from them. `skipped`: for each newer step
    that is not used, the first rank that lacks it, and why. `next_loss`: that of the next step, if a rank knows it."""

    copy: CopyId | None
    sources: Mapping[int, int] = field(default_factory=dict)
    skipped: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    next_loss: float | None = None


def place_replicas(domains: Sequence[tuple[str, ...]]) -> list[int]:
    """Return for each node the node that gets copies of its ranks: never itself, and each node gets those of one node.

    `domains`: of each node, what may fail together with it, such as its switch. It is a node of another domain wherever
    that is possible for all; otherwise for as many nodes as can be. At least two nodes.
    """
    order = sorted(range(len(domains)), key=lambda node: (domains[node], node))
    largest = max(domains.count(domain) for domain in domains)
    # Nodes of one domain are neighbours in this order, so no node is as far as the largest domain from another of its
    # own, if no domain has more than half of the nodes.
    shift = largest if largest < len(domains) else 1
    peers = [0] * len(domains)
    for place, node in enumerate(order):
        peers[node] = order[(place + shift) % len(order)]
    return peers


def choose_copy(
    ranks: Sequence[RankCopies],
    held: Sequence[Collection[tuple[int, CopyId]]],
    newest_stored: int,
    refused: Mapping[tuple[int, CopyId], Mapping[int, str]],
    incomplete: Mapping[CopyId, tuple[int, str]],
) -> Choice:
    """Return the newest copy that every rank has or can fetch, or can read its part of.

    `held`: by node, the copies of ranks in the memory of its agent. `newest_stored`: step of the newest stored
    checkpoint; nothing older is chosen. `refused`: for a rank and a copy, the nodes whose copy turned out to be
    unusable, and why. `incomplete`: copies of another number of ranks that lack a part of the state, with the first
    rank that needs it, and which.
    """
    nodes_of: dict[tuple[int, CopyId], list[int]] = {}
    for node, of_node in enumerate(held):
        for rank, copy in of_node:
            if node not in refused.get((rank, copy), {}):
                nodes_of.setdefault((rank, copy), []).append(node)
    known = {copy for rank in ranks for copy in rank.usable} | {copy for copies in held for _, copy in copies}
    skipped: dict[int, tuple[int, str]] = {}
    for rank, copies in enumerate(ranks):
        for step, because in copies.skipped:
            skipped.setdefault(step, (rank, because))
    chosen, sources = None, {}
    for copy in sorted((each for each in known if each.step >= newest_stored), reverse=True):
        if copy in incomplete:
            unusable = (
                (rank, because) for (rank, of), each in refused.items() if of == copy for because in each.values()
            )
            skipped.setdefault(copy.step, next(unusable, incomplete[copy]))
            continue
        if copy.world_size != len(ranks):
            found = {rank: nodes[0] for (rank, of), nodes in sorted(nodes_of.items()) if of == copy}
            if 0 in found:  # it has the metrics that were not delivered
                chosen, sources = copy, found
                break
            reasons = [*refused.get((0, copy), {}).values(), f"no node holds the copy of rank 0 of {copy.world_size}"]
            skipped.setdefault(copy.step, (0, reasons[0]))
            continue
        lacking = [rank for rank, copies in enumerate(ranks) if copy not in copies.usable]
        missing = next((rank for rank in lacking if (rank, copy) not in nodes_of), None)
        if missing is None:
            chosen, sources = copy, {rank: nodes_of[rank, copy][0] for rank in lacking}
            break
        reasons = [*refused.get((missing, copy), {}).values(), "this rank has no copy of it"]
        skipped.setdefault(copy.step, (missing, reasons[0]))
    oldest = newest_stored if chosen is None else chosen.step
    losses = [copies.usable[chosen] for copies in ranks if chosen is not None and chosen in copies.usable]
    return Choice(
        chosen,
        sources,
        {step: reason for step, reason in sorted(skipped.items()) if step > oldest},
        next((loss for loss in losses if loss is not None), None),
    )
