"""Jobs that only report on data: a real agent against the real API, database and store."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from athanor.artifacts.models import DataReport, PreparedDataset
from athanor.dispatch import tokens
from athanor.jobs.models import Attempt, Job, JobEvent
from tests.control_plane import drive
from tests.control_plane.api.live import LiveServer
from tests.control_plane.artifacts.test_base_models import finished_model
from tests.control_plane.artifacts.test_data_of_jobs import prepare_spec, submitted
from tests.control_plane.artifacts.test_datasets import upload
from tests.trainer.test_data_report import model_folder
from trainer.agent.supervisor import NodeConfig, Supervisor
from trainer.client.http import PlatformClient
from trainer.contract.data_report import DataReport as Content
from trainer.contract.run import EndClass
from trainer.resilience.assignment import HttpConnection

pytestmark = pytest.mark.django_db(transaction=True)
KEY = "ghp_" + "Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8Qr9St0Uv1Wx2"
QUESTION = "What is the capital of <b>France</b> & of Peru?"


def conversation(number: int) -> str:
    answer = f"Paris and Lima, answer {number}; the token is {KEY}" if number == 7 else f"Paris, answer {number}."
    messages = [{"role": "user", "content": f"{QUESTION} {number}"}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages})


NO_ANSWER = json.dumps({"messages": [{"role": "user", "content": "Is anyone there?"}]})
CHAT = "\n".join([*map(conversation, range(60)), NO_ANSWER]).encode()


def report_spec(*sources: str, **fields: Any) -> dict[str, Any]:
    spec = prepare_spec(*sources, **fields)
    spec["prepare"]["report"] = {"sequence_length": 64}
    return spec


@pytest.fixture
def live(db: None) -> Iterator[LiveServer]:
    running = LiveServer()
    yield running
    running.close()


@pytest.fixture
def run_job(api: Any, world: Any, bucket: str, live: LiveServer, tmp_path: Path) -> Callable[[dict], Attempt]:
    """Return a function that runs a job with its agent in this process, to its end."""

    def run(spec: dict[str, Any]) -> Attempt:
        attempt = drive.start(submitted(api, spec))
        url, token = f"{live.origin}/api/agent/v1", tokens.issue(attempt.id)
        client = PlatformClient(url, token, retry_seconds=20.0)
        ended = Supervisor(HttpConnection(url, token), client, NodeConfig(tmp_path / attempt.id)).run()
        assert ended is EndClass.COMPLETED
        return attempt

    return run


def test_a_job_reports_on_a_data_set_and_members_of_its_team_read_it(
    api: Any, run_job: Callable[[dict], Attempt], world: Any
) -> None:
    dataset = upload(api, CHAT, name="chat", content_type="application/jsonl").json()
    assert dataset["report"] is None
    missing = api.get(f"/api/v1/datasets/{dataset['id']}/report")
    assert missing.status_code == 404
    assert "athanor dataset report chat@1 --make" in missing.json()["remedy"]
    attempt = run_job(report_spec("dataset:chat"))
    row = DataReport.objects.get()
    assert not PreparedDataset.objects.exists()
    answer = api.get(f"/api/v1/datasets/{dataset['id']}/report").json()
    report = Content.model_validate(answer["report"])
    assert (answer["job_id"], answer["digest"]) == (attempt.job_id, report.digest)
    (source,) = report.sources
    found = {finding.kind: finding for finding in source.findings}
    assert found["no_assistant_turn"].places[0].row == 61
    assert found["github_token"].places[0].row == 8
    assert answer["findings"] == {"critical": report.count("critical"), "warning": row.warning, "info": row.info}
    assert row.critical == 2
    (document, *_) = source.preview
    assert any(token.learned for token in document.tokens)
    assert not all(token.learned for token in document.tokens)
    assert "<b>France</b>" in "".join(token.text for token in document.tokens)
    assert KEY not in json.dumps(answer)
    listed = api.get("/api/v1/datasets").json()["items"][0]
    assert listed["report"] == {name: answer[name] for name in ("id", "digest", "job_id", "findings", "created_at")}
    assert listed["preparation"]["state"] == "none", "a report is no tokenised form"
    (event,) = JobEvent.objects.filter(job=attempt.job_id, type="data_report.registered")
    assert (event.data["digest"], event.data["critical"]) == (row.digest, 2)
    world.finish(attempt.backend_name, 0)
    drive.settle()
    assert Job.objects.get(pk=attempt.job_id).status == "succeeded"


def test_a_job_reports_on_pairs(api: Any, run_job: Callable[[dict], Attempt]) -> None:
    rows = [
        {"prompt": f"Is {number} even?", "chosen": " Yes.", "rejected": f" Perhaps, says {number * 7919}."}
        for number in range(60)
    ]
    rows.append({"prompt": "Is 1 even?", "chosen": rows[1]["rejected"], "rejected": " Yes."})
    content = "\n".join(map(json.dumps, rows)).encode()
    dataset = upload(api, content, name="pairs", content_type="application/jsonl").json()
    spec = report_spec("dataset:pairs")
    spec["prepare"]["data"] |= {"format": "preference", "packing": "documents", "long_documents": "drop"}
    run_job(spec)
    (source,) = api.get(f"/api/v1/datasets/{dataset['id']}/report").json()["report"]["sources"]
    (found,) = [each for each in source["findings"] if each["kind"] == "contradicting_pairs"]
    assert [place["row"] for place in found["places"]] == [61]
    assert source["pairs"]["pairs"] == 61
    assert source["pairs"]["chosen_longer"] == pytest.approx(1 / 61)
    assert [each["answer"] for each in source["preview"]][:2] == ["chosen", "rejected"]


def test_a_report_for_a_base_model_uses_its_tokenizer_and_template(
    api: Any, run_job: Callable[[dict], Attempt], submit: Callable[..., Job], tmp_path: Path
) -> None:
    folder = model_folder(tmp_path / "model")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    artifact, _ = finished_model(submit, {**files, "model.safetensors": b"weights"})
    dataset = upload(api, CHAT, name="chat", content_type="application/jsonl").json()
    spec = report_spec("dataset:chat")
    del spec["prepare"]["tokenizer"]
    spec["prepare"]["report"]["base"] = f"model:{artifact.name}"
    attempt = run_job(spec)
    assert attempt.job.resolved_spec["prepare"]["report"]["base"] == f"model:{artifact.id}"
    (source,) = api.get(f"/api/v1/datasets/{dataset['id']}/report").json()["report"]["sources"]
    assert source["vocab_size"] == 300
    learned = "".join(token["text"] for token in source["preview"][0]["tokens"] if token["learned"])
    assert learned == "Paris, answer 0.<|im_end|>"
    assert not list(tmp_path.rglob("*.safetensors")), "a report needs no weights"
    edges = api.get("/api/v1/lineage", {"of": artifact.id, "direction": "down"}).json()["edges"]
    assert any(edge["target_id"] == attempt.job_id and edge["relation"] == "base" for edge in edges)


@pytest.mark.parametrize(
    ("changes", "pointer", "text"),
    [
        ({"base": "model:missing"}, "/prepare/report/base", "has no model 'missing'"),
        ({"base": "elsewhere"}, "/prepare/report/base", "is no model of the platform"),
    ],
)
def test_a_base_model_that_is_missing_is_refused(
    api: Any, world: Any, bucket: str, changes: dict[str, Any], pointer: str, text: str
) -> None:
    spec = report_spec("builtin:python-stdlib")
    spec["prepare"].pop("tokenizer", None)
    spec["prepare"]["report"] |= changes
    answer = api.send("POST", "jobs", spec).json()
    assert [error["pointer"] for error in answer["errors"]] == [pointer]
    assert text in answer["errors"][0]["detail"]


def test_a_base_model_excludes_a_tokenizer(api: Any, world: Any, bucket: str) -> None:
    spec = report_spec("builtin:python-stdlib")
    spec["prepare"]["tokenizer"] = {"vocab_size": 500}
    spec["prepare"]["report"]["base"] = "model:any"
    answer = api.send("POST", "jobs", spec).json()
    assert [error["pointer"] for error in answer["errors"]] == ["/prepare/tokenizer", "/prepare/report/base"]


def test_a_report_compares_the_data_with_evaluation_data(api: Any, run_job: Callable[[dict], Attempt]) -> None:
    known = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    scores = json.dumps({"question": known, "choices": ["yes"]}).encode()
    upload(api, scores, name="scores", content_type="application/jsonl")
    rows = [{"text": f"row {number} of the text"} for number in range(60)] + [{"text": f"It has {known} words."}]
    content = "\n".join(map(json.dumps, rows)).encode()
    dataset = upload(api, content, name="rows", content_type="application/jsonl").json()
    spec = report_spec("dataset:rows")
    spec["prepare"]["report"]["evaluation"] = ["dataset:scores"]
    run_job(spec)
    (source,) = api.get(f"/api/v1/datasets/{dataset['id']}/report").json()["report"]["sources"]
    (found,) = [each for each in source["findings"] if each["kind"] == "evaluation_overlap"]
    assert [place["row"] for place in found["places"]] == [61]
    assert source["overlap"]["rows"] == 1
    spec["prepare"]["report"]["evaluation"] = ["dataset:scores", "dataset:missing"]
    answer = api.send("POST", "jobs", spec).json()
    assert [error["pointer"] for error in answer["errors"]] == ["/prepare/report/evaluation/1"]
