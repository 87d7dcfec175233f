"""Who is slow, found from figures alone."""

from datetime import UTC, datetime
from itertools import combinations
from math import nan

import pytest

from trainer.contract.preflight import PAIRS, Finding, PreflightReport, format_report, format_value
from trainer.contract.run import ProgressEvent
from trainer.reporting.log_format import LogFormatter
from trainer.resilience.preflight import Pair, Place, differing, find_skew, judge, judge_pairs, pair_rounds

UNIT = "bytes_per_second"


def places(count: int) -> list[Place]:
    return [Place(f"n{at}", at) for at in range(count)]


def at_fault(findings: list[Finding]) -> list[tuple[str, list[str]]]:
    return [(each.severity, each.nodes) for each in findings]


@pytest.mark.parametrize(
    ("values", "expected", "found"),
    [
        ([100.0, 100, 98, 102], None, []),
        ([100.0, 100, 65, 102], None, [("slow", ["n2"])]),
        ([100.0, 100, 20, 102], None, [("broken", ["n2"])]),
        ([100.0, 50], None, [("slow", ["n1"])]),  # the faster of two is the measure
        ([100.0], None, []),
        ([100.0, 100], 200.0, []),
        ([70.0, 70], 200.0, [("slow", ["n0"]), ("slow", ["n1"])]),  # all alike, and all below their data sheet
        ([100.0, nan, 100], None, [("broken", ["n1"])]),
    ],
)
def test_a_place_is_judged_by_its_peers_and_by_its_device(
    values: list[float], expected: float | None, found: list[tuple[str, list[str]]]
) -> None:
    measure, findings = judge("memory", UNIT, places(len(values)), values, expected)
    assert at_fault(findings) == found
    assert measure is not None
    assert measure.lowest == min(value for value in values if value == value)


def test_a_slow_disk_is_never_a_broken_node() -> None:
    _, findings = judge("disk", UNIT, places(3), [100.0, 1.0, nan], None, worst="slow")
    assert sorted(at_fault(findings)) == [("slow", ["n1"]), ("slow", ["n2"])]


def test_a_wrong_product_names_its_device_only_with_a_majority() -> None:
    assert differing(places(3), [7.0, 7.0, 7.0]) == []
    assert at_fault(differing(places(3), [7.0, 7.5, 7.0])) == [("broken", ["n1"])]
    assert at_fault(differing(places(2), [7.0, 7.5])) == [("broken", [])]


@pytest.mark.parametrize("count", range(2, 12))
def test_rounds_pair_each_place_once_and_then_with_another(count: int) -> None:
    rounds = pair_rounds(count)
    for pairs in rounds:
        members = [place for pair in pairs for place in pair]
        assert len(members) == len(set(members)), pairs
        assert len(pairs) == count // 2
    seen = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(seen) == len(set(seen))
    assert set().union(*seen) == set(range(count))


def measured(count: int, slow_places: set[int], slow_links: set[frozenset[int]] = frozenset()) -> list[Pair]:
    return [
        Pair(number, a, b, 10.0 if {a, b} & slow_places or frozenset((a, b)) in slow_links else 100.0)
        for number, pairs in enumerate(pair_rounds(count))
        for a, b in pairs
    ]


@pytest.mark.parametrize("count", [4, 6, 8, 16])
def test_one_slow_node_is_found_and_its_partners_are_not(count: int) -> None:
    for culprit in range(count):
        findings = judge_pairs(places(count), measured(count, {culprit}))
        assert at_fault(findings) == [("broken", [f"n{culprit}"])], culprit


def test_two_slow_nodes_are_found() -> None:
    for first, second in combinations(range(12), 2):
        findings = judge_pairs(places(12), measured(12, {first, second}))
        assert {node for each in findings for node in each.nodes} == {f"n{first}", f"n{second}"}, (first, second)


def test_a_slow_link_blames_neither_node() -> None:
    (finding,) = judge_pairs(places(8), measured(8, set(), {frozenset((2, 3))}))
    assert (finding.severity, finding.nodes, finding.measure) == ("slow", [], PAIRS)
    assert "n2, rank 2 and n3, rank 3" in finding.because


def test_of_two_nodes_nothing_can_be_said() -> None:
    assert judge_pairs(places(2), measured(2, {1})) == []


def test_versions_of_the_minority_are_refused_by_name() -> None:
    same = {"torch": "2.13.0", "python": "3.12"}
    assert find_skew({"n1": same, "n2": dict(same)}) is None
    skew = find_skew({"n1": same, "n2": same, "n3": {**same, "torch": "2.11.0"}})
    assert skew is not None
    assert skew.odd == {"n3"}
    assert "torch is 2.13.0 on n1, n2, 2.11.0 on n3" in skew.because
    tie = find_skew({"n1": same, "n2": {**same, "python": "3.11"}})
    assert tie is not None
    assert tie.odd == {"n1", "n2"}, "nothing says which is right"
    absent = find_skew({"n1": same, "n2": same, "n3": {"python": "3.12"}})
    assert absent is not None
    assert "none on n3" in absent.because


def test_the_report_is_readable() -> None:
    measure, findings = judge("memory bandwidth", UNIT, places(3), [2.0e12, 2.1e12, 9e11], 2.0e12)
    assert measure is not None
    report = PreflightReport(ranks=3, nodes=3, device="H100", seconds=8.21, measures=[measure], findings=findings)
    text = "\n".join(format_report(report))
    assert "3 ranks on 3 nodes, H100, measured in 8.2 s" in text
    assert "slow: memory bandwidth of n2, rank 2 is 900 GB/s, 45% of the median 2 TB/s" in text
    assert format_value(3.2e-5, "seconds") == "32 us"


def test_a_log_has_the_report_and_not_its_json() -> None:
    lines: list[str] = []
    report = PreflightReport(ranks=2, nodes=1, device="cpu", seconds=1.0).model_dump(mode="json")
    data = {"result": "ok", "seconds": 1.0, "report": report}
    event = ProgressEvent(time=datetime.now(UTC), type="preflight.completed", data=data)
    LogFormatter(1, 0.0, lines.append).event(event)
    assert lines == ["2 ranks on 1 node, cpu, measured in 1.0 s", "nothing is slow or broken"]
