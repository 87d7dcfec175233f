"""Evaluation jobs and gated promotion: results belong to the version that a job evaluates, and decide promotions."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from athanor.accounts.models import AuditEvent, Team, User
from athanor.accounts.roles import Role
from athanor.artifacts import evaluations, registry
from athanor.artifacts.models import EvaluationResult, ModelAlias, RegisteredModel
from athanor.backends.fake.backend import World
from athanor.dispatch import tokens
from athanor.jobs.models import Attempt, Job, JobEvent
from tests.control_plane import drive
from tests.control_plane.answers import done, refused
from tests.control_plane.artifacts.test_base_models import agent_answer, exported, finished_model, started
from tests.control_plane.artifacts.test_datasets import upload
from tests.control_plane.artifacts.test_lineage import edges, lineage
from tests.control_plane.artifacts.test_registry import registered
from tests.control_plane.conftest import SPEC, Api
from trainer.contract import item_scores
from trainer.contract.run import EndClass, RunConfig

pytestmark = pytest.mark.django_db
Submit = Callable[..., Job]

QUESTIONS = b'{"question": "2 + 2 =", "choices": ["4", "5"], "answer": 0}\n'
HELD_OUT = {"name": "held-out", "kind": "loss", "source": "dataset:texts"}
ANSWERS = {"name": "answers", "kind": "generation", "source": "dataset:prompts", "scores": ["f1"], "max_tokens": 8}
FACTS = {"name": "facts", "kind": "multiple_choice", "source": "dataset:facts"}


def figure(
    metric: str, value: float, *, name: str = "", n: int = 100, margin: float = 0.05, **others: Any
) -> dict[str, Any]:
    task = name or ("facts" if metric.startswith("accuracy") else "held-out")
    return {
        "name": task, "metric": metric, "value": value, "n": n, "tokens": 900, "standard_error": margin / 1.96,
        "low": value - margin, "high": value + margin, **others,
    }  # fmt: skip


def evaluation(model: str, *tasks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    spec = {"model": model, "tasks": list(tasks or [HELD_OUT, FACTS]), "sequence_length": 64, **changes}
    return {"name": "evaluation", "resources": SPEC["resources"], "evaluation": spec}


@pytest.fixture
def data(api: Api, bucket: str) -> None:
    assert upload(api, b"held out text", name="texts").status_code == 201
    assert upload(api, QUESTIONS, name="facts", content_type="application/x-ndjson").status_code == 201


def evaluating(api: Api, model: str, *tasks: dict[str, Any]) -> Attempt:
    """A started attempt of an evaluation job."""
    job = done(api.send("POST", "jobs", evaluation(model, *tasks)))
    return drive.start(Job.objects.get(pk=job["id"]))


def evaluated(api: Api, model: str, *figures: dict[str, Any]) -> Attempt:
    """An attempt that has registered these figures, and some of the other task."""
    known = {each["name"] for each in figures}
    rest = [each for each in (figure("loss", 2.0), figure("accuracy", 0.5)) if each["name"] not in known]
    attempt = evaluating(api, model)
    done(agent_answer(attempt, "evaluations", {"figures": [*figures, *rest]}))
    return attempt


def promote(api: Api, model: str, version: int, *require: str, alias: str = "production") -> Any:
    return api.send("PUT", f"models/{model}/aliases/{alias}", {"version": version, "require": list(require)})


def test_an_evaluation_job_loads_the_version_and_its_results_are_shown_with_it(
    api: Api, submit: Submit, data: None, world: World
) -> None:
    artifact, _ = finished_model(submit)
    model = registered(api, artifact, "candidate")["model"]["id"]
    attempt = evaluating(api, "model:bot@candidate")
    sent = agent_answer(attempt, "run").json()
    assert sent["training"] is None, "an earlier trainer would train"
    config = RunConfig.model_validate(sent)
    assert config.evaluation is not None and config.training is not None and config.base is not None
    assert config.training.model.base == f"model:{artifact.id}"
    assert [source.name for source in config.datasets] == ["texts", "facts"]
    figures = [figure("loss", 2.1), figure("bits_per_byte", 1.4), figure("accuracy", 0.8)]
    for _ in range(2):
        assert done(agent_answer(attempt, "evaluations", {"figures": figures})) == {"results": 3}
    drive.report(attempt, EndClass.COMPLETED)
    world.finish(attempt.backend_name, 0)
    drive.settle()
    assert drive.status_of(attempt.job) == ("succeeded", "completed")
    shown = done(api.send("GET", f"models/{model}/versions/1"))["evaluations"]
    assert [(each["evaluation"], each["metric"], each["value"]) for each in shown] == [
        ("facts", "accuracy", 0.8), ("held-out", "bits_per_byte", 1.4), ("held-out", "loss", 2.1),
    ]  # fmt: skip
    assert (shown[0]["n"], shown[0]["job"]["id"], shown[0]["data_source"]) == (100, attempt.job_id, "dataset:facts")
    assert shown[0]["trained_on"] == []
    (event,) = JobEvent.objects.filter(job=attempt.job, type="evaluation.registered")
    assert event.data == {"artifact": artifact.id, "results": 3, "trained_on": []}
    found = edges(lineage(api, artifact.id, "&direction=down"))
    assert (attempt.job_id, "evaluates", artifact.id) in found
    datasets = {attempt.job.dataset_id, *attempt.job.more_dataset_ids}
    assert {(attempt.job_id, "evaluated_on", each) for each in datasets} <= edges(lineage(api, attempt.job_id))
    assert "trained_on" not in {relation for _, relation, _ in edges(lineage(api, attempt.job.dataset_id))}


def test_a_completed_evaluation_without_results_is_no_success(
    api: Api, submit: Submit, data: None, world: World
) -> None:
    registered(api, finished_model(submit)[0], "candidate")
    attempt = evaluating(api, "model:bot@candidate")
    drive.report(attempt, EndClass.COMPLETED)
    world.finish(attempt.backend_name, 0)
    drive.settle()
    assert Attempt.objects.get(pk=attempt.pk).reason_detail == "It reported its completion but registered no result."


MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"model": "model:bot@nowhere"}, "/evaluation/model", "has no alias 'nowhere'"),
    ({"model": "model:other@1"}, "/evaluation/model", "has no model 'other'"),
    ({"tasks": [{**HELD_OUT, "source": "dataset:text"}]}, "/evaluation/tasks/0/source", "did you mean"),
    ({"parallelism": {"tensor": 3}}, "/evaluation/parallelism", "3"),
    ({"tasks": []}, "/evaluation/tasks", "at least 1"),
    ({"sequence_length": 4}, "/evaluation/sequence_length", "8"),
]


def test_mistakes_are_named_at_the_fields_of_the_evaluation(api: Api, submit: Submit, data: None) -> None:
    registered(api, finished_model(submit)[0], "candidate")
    for changes, pointer, says in MISTAKES:
        written = evaluation("model:bot@candidate")
        written["evaluation"] |= changes
        answer = api.send("POST", "jobs", written)
        assert answer.status_code == 422, answer.content
        problems = {each["pointer"]: each["detail"] for each in answer.json()["errors"]}
        assert says in problems[pointer], problems


@pytest.mark.parametrize(
    ("task", "line"),
    [
        (ANSWERS, b'{"prompt": "import", "answer": "os"}'),
        (ANSWERS, b'{"prompt": "import", "answer": "os", "label": true}'),
        (FACTS, b'{"question": "a", "choices": ["b", "c"], "answer": 0, "topic": "letters", "author": "ada"}'),
    ],
)
def test_items_need_no_field_of_text(api: Api, submit: Submit, bucket: str, task: dict[str, Any], line: bytes) -> None:
    """The format and the field are ignored by all kinds but `loss`, so what was detected does not matter."""
    model = finished_model(submit)[0].id
    name = task["source"].removeprefix("dataset:")
    assert upload(api, line + b"\n", name=name, content_type="application/x-ndjson").status_code == 201
    job = Job.objects.get(pk=done(api.send("POST", "jobs", evaluation(f"model:{model}", task)))["id"])
    assert [part["source"] for part in job.resolved_spec["training"]["data"]["mixture"]] == [f"dataset:{name}"]


def test_a_version_of_another_team_is_not_found(
    api: Api, submit: Submit, data: None, api_of: Callable[..., Api], make_user: Callable[..., User]
) -> None:
    artifact, _ = finished_model(submit)
    model = registered(api, artifact, "candidate")["model"]["id"]
    evaluated(api, "model:bot@candidate")
    blue = Team.objects.create(name="blue")
    stranger = api_of(make_user("eve", blue), blue)
    for base in ("model:bot@candidate", f"model:{artifact.id}"):
        answer = stranger.send("POST", "jobs", {**evaluation(base, {**HELD_OUT, "source": "builtin:python-stdlib"})})
        assert answer.json()["errors"][0]["code"] == "base_not_found"
    assert stranger.send("GET", f"models/{model}/evaluations").status_code == 404
    assert promote(stranger, model, 1, "loss<=9").status_code == 404


def test_a_version_that_is_evaluated_now_is_not_deleted(api: Api, submit: Submit, data: None) -> None:
    model = registered(api, finished_model(submit)[0])["model"]["id"]
    attempt = evaluating(api, "model:bot@1")
    answer = api.send("DELETE", f"models/{model}/versions/1")
    refused(answer, "model_in_use", "wait until they have ended")
    assert attempt.job_id in answer.json()["detail"]


def test_a_promotion_needs_every_requirement_and_records_the_results(
    api: Api, submit: Submit, data: None, user: User
) -> None:
    artifact, job = finished_model(submit)
    model = registered(api, artifact, "candidate")["model"]["id"]
    attempt = evaluated(api, "model:bot@candidate", figure("loss", 2.1), figure("accuracy", 0.75, n=40))
    refused_answer = promote(api, model, 1, "loss<=2.1", "accuracy>=0.8")
    assert refused_answer.status_code == 409
    refused(refused_answer, "requirement_not_met", "athanor model evaluations bot")
    detail = refused_answer.json()["detail"]
    assert "facts.accuracy is 0.75 (n 40, 95 % interval 0.7 to 0.8)" in detail and attempt.job_id in detail
    assert not ModelAlias.objects.filter(name="production").exists()
    assert not JobEvent.objects.filter(job=job, data__alias="production").exists()
    assert done(promote(api, model, 1, "held-out.loss<=2.1", "facts.accuracy>0.74"))["version"] == 1
    event = JobEvent.objects.get(job=job, type="model.alias_moved", data__alias="production")
    facts = event.data["requirements"]
    assert [(each["requirement"], each["value"], each["n"]) for each in facts] == [
        ("held-out.loss<=2.1", 2.1, 100), ("facts.accuracy>0.74", 0.75, 40),
    ]  # fmt: skip
    assert {each["job"] for each in facts} == {attempt.job_id}
    record = AuditEvent.objects.filter(action="model.alias_move").latest("seq")
    assert record.after["requirements"] == facts and record.actor == user.username


def test_the_newest_result_counts(api: Api, submit: Submit, data: None) -> None:
    model = registered(api, finished_model(submit)[0], "candidate")["model"]["id"]
    evaluated(api, "model:bot@candidate", figure("accuracy", 0.9))
    evaluated(api, "model:bot@candidate", figure("accuracy", 0.6))
    assert promote(api, model, 1, "accuracy>=0.8").json()["code"] == "requirement_not_met"


def test_a_version_that_was_not_evaluated_is_refused_with_what_to_run(api: Api, submit: Submit, data: None) -> None:
    first, _ = finished_model(submit)
    model = registered(api, first, "candidate")["model"]["id"]
    answer = promote(api, model, 1, "facts.accuracy>=0.8")
    refused(answer, "not_evaluated", "evaluation.model: model:bot@1", "facts.accuracy")
    evaluated(api, "model:bot@candidate", figure("accuracy", 0.9))
    second, _ = finished_model(submit)
    registered(api, second, "candidate")
    answer = promote(api, model, 2, "accuracy>=0.8")
    refused(answer, "not_evaluated", "evaluation.model: model:bot@2")
    assert "version 1 has one, which says nothing of this version" in answer.json()["detail"]
    assert done(promote(api, model, 1, "accuracy>=0.8"))["version"] == 1


UNREADABLE = [
    ("accuracy", "is not [EVALUATION.]METRIC>=NUMBER"),
    ("bleu>=0.8", "there is no metric 'bleu'"),
    ("accuracy>=many", "is not"),
    ("accuracy>=nan", "is not"),
    ("accuracy==0.8", "is not"),
    ("a.b.accuracy>=0.8", "is not"),
]


def test_a_requirement_that_cannot_be_read_is_refused(api: Api, submit: Submit, data: None) -> None:
    model = registered(api, finished_model(submit)[0])["model"]["id"]
    for text, says in UNREADABLE:
        answer = promote(api, model, 1, "loss<=2", text)
        refused(answer, "invalid_requirement", "accuracy>=0.8")
        assert answer.json()["errors"][0]["pointer"] == "/require/1"
        assert says in answer.json()["detail"]


def test_a_metric_of_several_evaluations_must_be_named(api: Api, submit: Submit, data: None) -> None:
    model = registered(api, finished_model(submit)[0], "candidate")["model"]["id"]
    more = {**HELD_OUT, "name": "other", "source": "builtin:python-stdlib"}
    attempt = evaluating(api, "model:bot@candidate", HELD_OUT, more)
    figures = [figure("loss", 2.0), figure("loss", 3.0, name="other")]
    done(agent_answer(attempt, "evaluations", {"figures": figures}))
    answer = promote(api, model, 1, "loss<=2.5")
    refused(answer, "requirement_ambiguous", "held-out.loss<=2.5")
    assert done(promote(api, model, 1, "held-out.loss<=2.5"))["version"] == 1


def test_a_viewer_does_not_promote(
    api: Api, submit: Submit, data: None, api_of: Callable[..., Api], make_user: Callable[..., User], team: Team
) -> None:
    model = registered(api, finished_model(submit)[0], "candidate")["model"]["id"]
    evaluated(api, "model:bot@candidate")
    viewer = api_of(make_user("vera", team, Role.VIEWER), team)
    assert promote(viewer, model, 1, "loss<=9").status_code == 403
    assert viewer.send("GET", f"models/{model}/evaluations").status_code == 200


IMPOSSIBLE: list[dict[str, Any]] = [
    {"name": "elsewhere"},
    {"metric": "accuracy"},  # of a task of kind loss
    {"value": -1.0, "low": -2.0, "high": 0.0},
    {"low": 2.5},
    {"n": 0},
]


def test_figures_that_are_not_those_of_the_tasks_are_refused(api: Api, submit: Submit, data: None) -> None:
    registered(api, finished_model(submit)[0], "candidate")
    attempt = evaluating(api, "model:bot@candidate", HELD_OUT)
    for change in IMPOSSIBLE:
        answer = agent_answer(attempt, "evaluations", {"figures": [{**figure("loss", 2.0), **change}]})
        assert answer.status_code == 422, answer.content
    twice = agent_answer(attempt, "evaluations", {"figures": [figure("loss", 2.0), figure("loss", 3.0)]})
    refused(twice, "invalid_results", "all results of the job's tasks")
    client = Api()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {tokens.issue(attempt.id)}")
    for value in ("NaN", "Infinity", "-Infinity", "1e999", "null"):
        body = json.dumps({"figures": [figure("loss", 2.0)]}).replace('"value": 2.0', f'"value": {value}')
        answer = client.generic("POST", "/api/agent/v1/evaluations", body, content_type="application/json")
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")
    assert not EvaluationResult.objects.exists()


def test_a_training_job_registers_no_results(api: Api, submit: Submit, data: None) -> None:
    artifact, _ = finished_model(submit)
    attempt = started(api, f"model:{artifact.id}")
    answer = agent_answer(attempt, "evaluations", {"figures": [figure("loss", 0.1)]})
    assert (answer.status_code, answer.json()["code"]) == (409, "not_an_evaluation")
    assert not EvaluationResult.objects.exists()


def test_an_attempt_cannot_name_another_version(api: Api, submit: Submit, data: None) -> None:
    one, _ = finished_model(submit)
    other, _ = finished_model(submit)
    registered(api, one, "candidate")
    registered(api, other)
    attempt = evaluating(api, "model:bot@candidate", HELD_OUT)
    forged = {**figure("loss", 0.1), "artifact": other.id, "version": 2, "job_id": other.job_id, "base": other.id}
    done(agent_answer(attempt, "evaluations", {"figures": [forged], "artifact": other.id, "version": 2}))
    assert set(EvaluationResult.objects.values_list("artifact", flat=True)) == {one.id}
    late = {"figures": [figure("loss", 0.01)]}
    done(agent_answer(attempt, "evaluations", late))
    assert EvaluationResult.objects.get().value == 0.1, "what is registered does not change"


def test_results_on_data_that_the_model_was_trained_on_are_warned_about(api: Api, submit: Submit, data: None) -> None:
    first, trainer = finished_model(submit)  # on the builtin text
    registered(api, first, "candidate")
    tuning = started(api, "model:bot@candidate")
    model = registered(api, exported(tuning), "candidate", name="tuned")["model"]["id"]
    seen = {**HELD_OUT, "name": "seen", "source": "builtin:python-stdlib"}
    attempt = evaluating(api, "model:tuned@candidate", HELD_OUT, seen)
    figures = [figure("loss", 2.0), figure("loss", 1.0, name="seen")]
    done(agent_answer(attempt, "evaluations", {"figures": figures}))
    shown = done(api.send("GET", f"models/{model}/versions/1"))["evaluations"]
    warned = {each["evaluation"]: sorted(each["trained_on"]) for each in shown}
    assert warned == {"held-out": [], "seen": sorted([trainer.id, tuning.job_id])}
    event = JobEvent.objects.get(job=attempt.job, type="evaluation.registered")
    assert event.data["trained_on"] == [trainer.dataset_id]


def test_a_lineage_that_is_cut_is_no_lineage_without_a_warning(
    api: Api, submit: Submit, data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluations, "MAX_LIMIT", 1)
    registered(api, finished_model(submit)[0], "candidate")
    evaluated(api, "model:bot@candidate")
    assert set(EvaluationResult.objects.values_list("trained_on", flat=True)) == {None}


def test_versions_are_compared_with_the_version_in_production(api: Api, submit: Submit, data: None) -> None:
    model = registered(api, finished_model(submit)[0], "production")["model"]["id"]
    evaluated(api, "model:bot@1", figure("accuracy", 0.7), figure("loss", 2.0))
    registered(api, finished_model(submit)[0], "candidate")
    evaluated(api, "model:bot@2", figure("accuracy", 0.8), figure("loss", 1.98))
    found = done(api.send("GET", f"models/{model}/evaluations"))
    assert found["against"] == 1
    rows = {(row["version"], row["result"]["metric"]): row for row in found["items"]}
    assert list(rows) == [(2, "accuracy"), (1, "accuracy"), (2, "loss"), (1, "loss")]
    assert rows[1, "loss"]["difference"] is None and rows[2, "loss"]["aliases"] == ["candidate"]
    better = rows[2, "accuracy"]["difference"]
    assert better["value"] == pytest.approx(0.1)
    assert (better["is_significant"], better["is_better"]) == (True, True)
    assert better["low"] == pytest.approx(0.1 - 0.05 * 2**0.5)
    same = rows[2, "loss"]["difference"]
    assert (same["is_significant"], same["is_better"]) == (False, True)
    other = done(api.send("GET", f"models/{model}/evaluations?against=2"))
    assert [row["difference"] is None for row in other["items"]] == [True, False, True, False]
    assert api.send("GET", f"models/{model}/evaluations?against=nowhere").status_code == 404


def test_results_of_the_same_items_are_compared_in_pairs(
    api: Api, submit: Submit, data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, more = [1] * 70 + [0] * 30, [1] * 76 + [0] * 24
    model = registered(api, finished_model(submit)[0], "production")["model"]["id"]
    evaluated(api, "model:bot@1", figure("accuracy", 0.7, items=item_scores.pack("accuracy", right)))
    registered(api, finished_model(submit)[0], "candidate")
    evaluated(api, "model:bot@2", figure("accuracy", 0.76, items=item_scores.pack("accuracy", more)))

    def compared() -> Any:
        rows = done(api.send("GET", f"models/{model}/evaluations"))["items"]
        return next(row["difference"] for row in rows if row["result"]["metric"] == "accuracy" and row["version"] == 2)

    found = compared()
    assert (found["is_paired"], found["is_significant"]) == (True, True)
    assert found["p_value"] == pytest.approx(2 / 2**6)
    assert 0 < found["low"] < 0.06 < found["high"] < 0.13
    monkeypatch.setattr(evaluations, "MAX_COMPARED_ITEMS", 150)
    apart = compared()
    assert (apart["is_paired"], apart["p_value"], apart["is_significant"]) == (False, None, False)


@pytest.mark.parametrize(
    ("metric", "items", "text"),
    [
        ("accuracy", "!", "not base64"),
        ("accuracy", item_scores.pack("accuracy", [1] * 99), "not the results of 100 items"),
        ("accuracy", item_scores.pack("accuracy", [1] * 100), "their value is 1, and that of the figure 0.7"),
    ],
)
def test_items_that_are_not_those_of_the_figure_are_refused(
    api: Api, submit: Submit, data: None, metric: str, items: str, text: str
) -> None:
    registered(api, finished_model(submit)[0], "candidate")
    attempt = evaluating(api, "model:bot@candidate")
    answer = agent_answer(attempt, "evaluations", {"figures": [figure(metric, 0.7, items=items)]})
    assert answer.status_code == 422
    assert text in json.dumps(answer.json())
    assert not EvaluationResult.objects.exists()


def test_results_on_other_data_are_not_compared(api: Api, submit: Submit, data: None) -> None:
    model = registered(api, finished_model(submit)[0], "production")["model"]["id"]
    evaluated(api, "model:bot@1", figure("loss", 2.0))
    registered(api, finished_model(submit)[0], "candidate")
    evaluated(api, "model:bot@2", figure("loss", 1.0, n=99))
    rows = done(api.send("GET", f"models/{model}/evaluations"))["items"]
    assert [row["difference"] for row in rows if row["result"]["metric"] == "loss"] == [None, None]


def test_two_promotions_at_the_same_time_are_recorded_one_after_the_other(
    api: Api, submit: Submit, data: None, user: User, transactional_db: None
) -> None:
    model_id = registered(api, finished_model(submit)[0])["model"]["id"]
    registered(api, finished_model(submit)[0])
    for number in (1, 2):
        evaluated(api, f"model:bot@{number}", figure("accuracy", 0.9))
    model = RegisteredModel.objects.get(pk=model_id)
    together = threading.Barrier(2)

    def move(number: int) -> int:
        try:
            together.wait(10)
            requirement = evaluations.Requirement.parse("accuracy>=0.8")
            return registry.point_alias(model, "production", number, user, [requirement]).version.number
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(move, (1, 2)))
    moves = [event.data for event in JobEvent.objects.filter(type="model.alias_moved").order_by("time", "pk")]
    assert {move["version"] for move in moves} == {1, 2}
    by_before = {move["previous_version"]: move["version"] for move in moves}
    assert by_before[None] != ModelAlias.objects.get(name="production").version.number
    assert by_before[by_before[None]] == ModelAlias.objects.get(name="production").version.number
    assert all(move["requirements"] for move in moves)
