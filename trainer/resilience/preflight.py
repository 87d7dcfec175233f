"""What follows from the figures of a preflight, and from the versions of the nodes. Pure."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

from trainer.contract.preflight import MATRIX_PRODUCTS, PAIRS, Finding, Measure, Severity, Unit, format_value

SLOW, BROKEN = 0.7, 0.3
"""Of the median of the peers. A figure is the best of several repetitions, which leaves out short disturbances."""
SLOW_PAIR = 0.5
"""Pairs differ more: two nodes below one switch have a shorter way."""
SLOW_OF_EXPECTED = 0.4
"""Of the peak of the data sheet. The measured programs reach 60 to 90 % of it on a healthy device."""


@dataclass(frozen=True)
class Place:
    """Where something was measured: a rank, or the rank that speaks for its node."""

    node: str
    rank: int

    def __str__(self) -> str:
        return f"{self.node}, rank {self.rank}"


@dataclass(frozen=True)
class Pair:
    """The rate between two places, by their numbers, in round 0 or 1."""

    round: int
    first: int
    second: int
    rate: float


def judge(
    name: str, unit: Unit, places: Sequence[Place], values: Sequence[float], expected: float | None,
    worst: Severity = "broken",
) -> tuple[Measure | None, list[Finding]]:  # fmt: skip
    """Compare the figures of places, higher being better, with each other and with what is expected of the device.

    The peer value is the high median, so that of two places the slower one is found. NaN: the measurement of that place
    failed, which is a finding of the severity `worst`. Return None as the measure if all have failed.
    """
    known = [(value, place) for value, place in zip(values, places, strict=True) if value == value]
    failed = [place for value, place in zip(values, places, strict=True) if value != value]
    findings = [
        Finding(severity=worst, nodes=[p.node], because=f"{name} could not be measured on {p}", measure=name)
        for p in failed
    ]
    if not known:
        return None, findings
    middle = median_high([value for value, _ in known])
    lowest, lowest_at = min(known, key=lambda each: each[0])
    for value, place in known:
        text = f"{name} of {place} is {format_value(value, unit)}"
        severity: Severity = worst if value < BROKEN * middle else "slow"
        if value < SLOW * middle:
            because = f"{text}, {value / middle:.0%} of the median {format_value(middle, unit)}"
            findings.append(Finding(severity=severity, nodes=[place.node], because=because, measure=name))
        elif expected is not None and value < SLOW_OF_EXPECTED * expected:
            because = f"{text}, {value / expected:.0%} of the {format_value(expected, unit)} of such a device"
            findings.append(Finding(severity="slow", nodes=[place.node], because=because, measure=name))
    measure = Measure(
        name=name, unit=unit, count=len(known), median=middle, lowest=lowest, lowest_at=str(lowest_at),
        highest=max(value for value, _ in known), expected=expected,
    )  # fmt: skip
    return measure, findings


def differing(places: Sequence[Place], results: Sequence[float]) -> list[Finding]:
    """Return the places whose result of the same computation differs from the majority's. Without a majority, all
    are named and none is at fault."""
    counts = Counter(results)
    if len(counts) < 2:
        return []
    (usual, count), *_ = counts.most_common(1)
    if 2 * count <= len(results):
        because = "the same matrix product has different results on all devices"
        return [Finding(severity="broken", nodes=[], because=because, measure=MATRIX_PRODUCTS)]
    odd = [place for place, result in zip(places, results, strict=True) if result != usual]
    return [
        Finding(
            severity="broken",
            nodes=[place.node],
            because=f"a matrix product on {place} has a wrong result",
            measure=MATRIX_PRODUCTS,
        )
        for place in odd
    ]


def pair_rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return the pairs of two rounds, so that each place has another partner in the second, where there are enough."""
    first = [(at, at + 1) for at in range(0, count - 1, 2)]
    if count < 3:
        return [first] if first else []
    ring = [*range(1, count), 0]
    return [first, list(zip(ring[0 : count - 1 : 2], ring[1::2], strict=False))]


def judge_pairs(places: Sequence[Place], pairs: Sequence[Pair], worst: Severity = "broken") -> list[Finding]:
    """Return what makes pairs slow: a place that is slow with each of its partners, or else the link of a pair.

    A place with one fast pair is not at fault, so its partner in a slow one is, unless that has a fast pair too: then
    it is the link. A place between two that are at fault cannot be judged, and is not blamed.
    """
    if len(pairs) < 2:
        return []
    middle = median_high([pair.rate for pair in pairs])
    of_place: dict[int, list[Pair]] = defaultdict(list)
    for pair in pairs:
        of_place[pair.first].append(pair)
        of_place[pair.second].append(pair)

    def is_slow(pair: Pair) -> bool:
        return pair.rate < SLOW_PAIR * middle

    cleared = {place for place, own in of_place.items() if not all(map(is_slow, own))}
    suspects = {
        place
        for place, own in of_place.items()
        if len(own) > 1 and place not in cleared and any({pair.first, pair.second} & cleared for pair in own)
    }
    findings = []
    for place in sorted(suspects):
        best = max(pair.rate for pair in of_place[place])
        because = (
            f"sending between {places[place]} and each of its partners is slow: at most "
            f"{format_value(best, 'bytes_per_second')}, {best / middle:.0%} of the median of pairs"
        )
        severity: Severity = worst if best < BROKEN * middle else "slow"
        findings.append(Finding(severity=severity, nodes=[places[place].node], because=because, measure=PAIRS))
    for pair in pairs:
        if is_slow(pair) and not {pair.first, pair.second} & suspects:
            because = (
                f"the link between {places[pair.first]} and {places[pair.second]} is slow: "
                f"{format_value(pair.rate, 'bytes_per_second')}, {pair.rate / middle:.0%} of the median of pairs"
            )
            findings.append(Finding(severity="slow", nodes=[], because=because, measure=PAIRS))
    return findings


@dataclass(frozen=True)
class Skew:
    """Versions that differ between nodes. `odd`: the nodes that differ from the majority; all without one."""

    because: str
    odd: frozenset[str]


def find_skew(versions: Mapping[str, Mapping[str, str]]) -> Skew | None:
    """Return how the nodes differ, None if they do not. `versions`: by node, then by program."""
    nodes = sorted(versions)
    texts, odd = [], set()
    for program in sorted({program for each in versions.values() for program in each}):
        by_version: dict[str, list[str]] = defaultdict(list)
        for node in nodes:
            by_version[versions[node].get(program, "none")].append(node)
        if len(by_version) < 2:
            continue
        ordered = sorted(by_version.items(), key=lambda item: -len(item[1]))
        texts.append(f"{program} is " + ", ".join(f"{version} on {_names(of)}" for version, of in ordered))
        is_majority = 2 * len(ordered[0][1]) > len(nodes)
        odd |= {node for _, of in (ordered[1:] if is_majority else ordered) for node in of}
    if not texts:
        return None
    return Skew(f"the nodes have different versions: {'; '.join(texts)}; install the same on all nodes", frozenset(odd))


def _names(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:3])
    return shown if len(nodes) <= 3 else f"{shown} and {len(nodes) - 3} more"
