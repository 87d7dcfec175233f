"""The simulator: its figures, and that it makes the decisions that admission makes."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from athanor.cli.main import app
from athanor.quotas.capacity import CapacityGrant, CapacityNode
from athanor.scheduling.policy.snapshot import Pool, Settings
from athanor.scheduling.simulator.engine import PastJob, Plan, simulate
from athanor.scheduling.simulator.report import build_report, jain, quantile
from athanor.scheduling.simulator.scenario import Scenario
from athanor.scheduling.simulator.workload import DAY, Submitter, generate

ROOT = CapacityNode("organisation", "organisation")
EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "operations" / "simulator.md"


def plan(*nodes: CapacityNode, slots: int = 8, **fields: Any) -> Plan:
    given = nodes or (CapacityNode("red", "red", "organisation"), CapacityNode("blue", "blue", "organisation"))
    return Plan([ROOT, *given], [Pool("gpu", "gpu", "h100", slots, slots)], **fields)


def job(name: str, at: int, slots: int, lasts: int, node: str = "red", **fields: Any) -> PastJob:
    return PastJob(name, at, node, "gpu", slots, lasts, fields.pop("limit", lasts), **fields)


def test_waits_use_and_queue_are_those_of_a_timeline_done_by_hand() -> None:
    jobs = [job("a", 0, 8, 100), job("b", 10, 4, 50), job("c", 20, 8, 10), job("d", 30, 4, 40, "blue")]
    outcome = simulate(plan(cycle_seconds=1), jobs)
    waited = {record.job.id: record.waited for record in outcome.records}
    assert waited == {"a": 0, "b": 90, "c": 130, "d": 70}, "d fills the gap beside b, c needs all"
    assert outcome.seconds == 160
    assert outcome.used == {"gpu": 8 * 100 + 4 * 50 + 8 * 10 + 4 * 40}
    assert outcome.longest_queue == {"": 3, "red": 2, "blue": 1}
    found = build_report(outcome)
    assert found.utilisation == round(1240 / (8 * 160), 4)
    assert found.teams["blue"].waits_seconds.p50 == 70
    assert found.all.ended == 4


def test_reclaiming_ones_own_costs_others_their_work_since_the_last_checkpoint() -> None:
    nodes = [CapacityNode(name, name, "organisation", grants={"h100": CapacityGrant(4)}) for name in ("red", "blue")]
    jobs = [job("greedy", 0, 8, 5000), job("owner", 1000, 4, 100, "blue")]
    of = plan(*nodes, settings=Settings(protected_seconds=0), checkpoint_seconds=300, cycle_seconds=1)
    records = {record.job.id: record for record in simulate(of, jobs).records}
    greedy, owner = records["greedy"], records["owner"]
    assert (greedy.preemptions, owner.waited) == (1, 60), "it had a minute to leave"
    assert greedy.lost == 8 * (1060 % 300)
    assert (greedy.ran, greedy.ended) == (5000 + 1060 % 300, 1160 + 5000 - 900)
    without = simulate(replace(of, settings=Settings(preempt=False)), jobs)
    assert [record.waited for record in without.records] == [0, 4000]


def test_a_job_that_can_never_start_is_counted_and_stops_nobody() -> None:
    nodes = [CapacityNode("red", "red", "organisation", grants={"h100": CapacityGrant(4, borrow_limit=0)})]
    found = build_report(simulate(plan(*nodes), [job("never", 0, 6, 10), job("small", 1, 2, 10)]))
    assert (found.all.jobs, found.all.started, found.all.ended) == (2, 1, 1)


def test_the_same_history_gives_the_same_outcome_and_fair_shares_are_fairer() -> None:
    teams = [Submitter("red", ("gpu",), weight=5.0), Submitter("blue", ("gpu",))]
    jobs = generate(teams, days=6, jobs_per_day=150, largest=8, seed=3)
    assert generate(teams, days=6, jobs_per_day=150, largest=8, seed=3) == jobs
    fair = build_report(simulate(plan(slots=32), jobs))
    assert build_report(simulate(plan(slots=32), jobs)) == fair
    plain = build_report(simulate(plan(slots=32, settings=Settings(fair_share=False)), jobs))
    assert fair.all.ended == plain.all.ended == len(jobs)
    assert fair.teams["blue"].waits_seconds.mean < plain.teams["blue"].waits_seconds.mean


def test_made_up_jobs_come_by_day_and_few_are_large() -> None:
    jobs = generate([Submitter("red", ("gpu",))], days=14, jobs_per_day=300, largest=32, seed=1)
    assert len(jobs) == 14 * 300
    by_hour = [sum(one.at % DAY // 3600 == hour for one in jobs) for hour in (2, 14)]
    assert by_hour[0] * 4 < by_hour[1]
    weekend = sum(one.at // DAY % 7 >= 5 for one in jobs)
    assert weekend < len(jobs) * 0.2
    sizes = [sum(one.slots == size for one in jobs) for size in (1, 8, 32)]
    assert sizes[0] > 3 * sizes[1] > 3 * sizes[2] > 0


def test_figures_of_a_report() -> None:
    assert [quantile(list(range(1, 101)), percent) for percent in (50, 90, 99)] == [50, 90, 99]
    assert quantile([], 50) == 0
    assert jain([1.0, 1.0]) == jain([]) == 1.0
    assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25


def example() -> dict[str, Any]:
    found = re.search(r"```yaml\n(.*?)```", EXAMPLE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    scenario: dict[str, Any] = yaml.safe_load(found[1])
    scenario["generate"]["days"] = 2
    return scenario


def test_the_example_of_the_documents_runs_and_compares_on_the_command_line(tmp_path: Path) -> None:
    now, proposed = tmp_path / "now.yaml", tmp_path / "proposed.yaml"
    scenario = example()
    now.write_text(yaml.safe_dump(scenario))
    scenario["nodes"][0]["grants"]["h100"] = {"nominal": 128}
    scenario["pools"][0]["slots"] = 256
    proposed.write_text(yaml.safe_dump(scenario))
    shown = CliRunner().invoke(app, ["simulate", str(now), "--compare", str(proposed)])
    assert shown.exit_code == 0, shown.output
    assert "vision" in shown.output and "fairness" in shown.output
    done = CliRunner().invoke(app, ["simulate", str(now), "--compare", str(proposed), "--json"])
    found = json.loads(done.output)
    assert list(found) == ["now.yaml", "proposed.yaml"]
    waits = [found[name]["all"]["waits_seconds"]["mean"] for name in found]
    assert waits[1] < waits[0], "with more slots and more of them its own"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"generate": None}, "either `generate` or `jobs`"),
        ({"nodes": [{"name": "a"}, {"name": "a"}]}, "a occurs twice"),
        ({"nodes": [{"name": "vision", "parent": "gone"}]}, "'gone', which is no node"),
        ({"nodes": [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]}, "above itself"),
        ({"pools": [{"name": "other", "accelerator": "h100", "slots": 1}]}, "there is no pool gpu"),
        ({"nodes": [{"name": "vision"}]}, "'speech' is no team"),
        ({"pools": [{"name": "gpu", "accelerator": "h100", "slots": 0}]}, "greater than or equal to 1"),
        ({"colour": "red"}, "Extra inputs"),
    ],
)
def test_what_is_no_scenario_is_refused_with_its_place(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        Scenario.model_validate({**example(), **change})
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump({**example(), **change}))
    refused = CliRunner().invoke(app, ["simulate", str(file)])
    assert refused.exit_code == 2
    assert message in refused.output
