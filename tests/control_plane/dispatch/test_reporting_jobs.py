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
from tests.control_plane.artifacts.test_data_of_jobs import prepare_spec, submitted
from tests.control_plane.artifacts.test_datasets import upload
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
