"""Traces of a running job's steps: requested over the API, sent to its agent, uploaded by it, downloaded."""

from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts.models import AuditEvent, Team
from athanor.accounts.roles import Role
from athanor.artifacts import keys, storage
from athanor.artifacts.models import Profile
from athanor.backends.fake.backend import World
from athanor.dispatch import tokens
from athanor.jobs import services
from athanor.jobs.models import Attempt, Job, JobEvent
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient, stored_part
from tests.control_plane.conftest import Api
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import ProfileManifest, StoredFile, StoredPart
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db
BEAT = {"node_rank": 0, "generation": 0, "phase": "training", "step": 7}


@pytest.fixture
def attempt(submit: Callable[..., Job], bucket: str) -> Attempt:
    return drive.run(submit())


@pytest.fixture
def agent(attempt: Attempt) -> AgentClient:
    return AgentClient(tokens.issue(attempt.id))


def traces_of(attempt: Attempt, **changes: Any) -> dict[str, Any]:
    parts = {rank: stored_part(attempt, f"profiles/1-1/{rank}", b"{}") for rank in (0, 1)}
    files = [StoredFile(path=f"steps-9-11-rank-{rank}.json.gz", parts=[part]) for rank, part in parts.items()]
    made = ProfileManifest(number=1, node_rank=0, first_step=9, last_step=11, files=files)
    return made.model_copy(update=changes).model_dump(mode="json")


def events_of(job_id: str) -> list[tuple[str, dict[str, Any]]]:
    return list(JobEvent.objects.filter(job=job_id, type__startswith="profile").values_list("type", "data"))


def test_a_profile_is_told_to_the_agent_until_it_has_brought_it(api: Api, agent: AgentClient, attempt: Attempt) -> None:
    assert agent("POST", "heartbeat", BEAT).json()["profile"] is None
    asked = api.send("POST", f"jobs/{attempt.job_id}:profile", {"steps": 3})
    assert asked.status_code == 202, asked.content
    assert (asked.json()["status"], asked.json()["steps"], asked.json()["attempt"]) == ("requested", 3, attempt.id)
    for _ in range(2):
        assert agent("POST", "heartbeat", BEAT).json()["profile"] == {"number": 1, "steps": 3}
    traces = traces_of(attempt)
    for _ in range(2):  # an answer that was lost is asked for again
        assert agent("POST", "profiles", traces).status_code == 201
    assert agent("POST", "heartbeat", BEAT).json()["profile"] is None
    found = api.send("GET", f"jobs/{attempt.job_id}/profiles").json()["items"]
    assert [(row["status"], row["first_step"], row["last_step"]) for row in found] == [("ready", 9, 11)]
    assert found[0]["size_bytes"] > 0
    assert [kind for kind, _ in events_of(attempt.job_id)] == ["profile.requested", "profile.ready"]
    assert events_of(attempt.job_id)[1][1]["artifact"] == found[0]["artifact"]

    download = api.send("POST", f"artifacts/{found[0]['artifact']}:download").json()
    part = StoredPart.model_validate(download["files"][1]["parts"][0])
    assert download["files"][1]["path"] == "steps-9-11-rank-1.json.gz"
    assert Encryptor(download["data_key"]).decrypt(storage.get(part.key), part) == b"{}"


def test_one_request_is_open_at_a_time_and_a_second_follows_the_first(
    api: Api, agent: AgentClient, attempt: Attempt
) -> None:
    first = api.send("POST", f"jobs/{attempt.job_id}:profile").json()
    assert first["steps"] == 3
    again = api.send("POST", f"jobs/{attempt.job_id}:profile", {"steps": 5})
    assert (again.status_code, again.json()["code"]) == (409, "profile_open")
    assert first["id"] in again.json()["detail"]
    agent("POST", "profiles", traces_of(attempt))
    assert api.send("POST", f"jobs/{attempt.job_id}:profile", {"steps": 5}).json()["number"] == 2
    assert agent("POST", "heartbeat", BEAT).json()["profile"] == {"number": 2, "steps": 5}


@pytest.mark.parametrize("steps", [0, 51, "many", None])
def test_a_number_of_steps_that_cannot_be_is_named(api: Api, attempt: Attempt, steps: Any) -> None:
    answer = api.send("POST", f"jobs/{attempt.job_id}:profile", {"steps": steps})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/steps"


def test_only_a_job_that_trains_can_be_profiled(api: Api, submit: Callable[..., Job], world: World) -> None:
    waiting = submit()
    refused = api.send("POST", f"jobs/{waiting.id}:profile")
    assert (refused.status_code, refused.json()["code"]) == (409, "job_not_running")
    assert "queued" in refused.json()["detail"]
    attempt = drive.run(waiting)
    services.request_pause(waiting.id, "ada")
    assert api.send("POST", f"jobs/{waiting.id}:profile").json()["code"] == "job_not_running"
    services.request_resume(waiting.id, "ada")
    drive.end(world, attempt, EndClass.COMPLETED)
    assert "succeeded" in api.send("POST", f"jobs/{waiting.id}:profile").json()["detail"]
    assert Profile.objects.count() == 0


def test_who_may_not_stop_a_job_may_not_slow_it_down_either(
    api_of: Callable, make_user: Callable, team: Team, attempt: Attempt
) -> None:
    viewer = api_of(make_user("vera", team, Role.VIEWER), team)
    assert viewer.send("POST", f"jobs/{attempt.job_id}:profile").status_code == 403
    assert viewer.send("GET", f"jobs/{attempt.job_id}/profiles").status_code == 200


@pytest.mark.parametrize("end_class", [EndClass.COMPLETED, EndClass.PROCESS_KILLED])
def test_an_attempt_that_ends_first_fails_the_request(
    api: Api, attempt: Attempt, world: World, end_class: EndClass
) -> None:
    api.send("POST", f"jobs/{attempt.job_id}:profile")
    drive.end(world, attempt, end_class)
    found = api.send("GET", f"jobs/{attempt.job_id}/profiles").json()["items"][0]
    assert (found["status"], found["artifact"]) == ("failed", None)
    assert "ended before" in found["reason"]
    assert [kind for kind, _ in events_of(attempt.job_id)] == ["profile.requested", "profile.failed"]


def test_traces_that_were_not_made_fail_the_request_and_not_the_job(
    api: Api, agent: AgentClient, attempt: Attempt
) -> None:
    api.send("POST", f"jobs/{attempt.job_id}:profile")
    body = {"number": 1, "node_rank": 0, "problem": "No space left on device"}
    assert agent("POST", "profiles", body).status_code == 201
    found = api.send("GET", f"jobs/{attempt.job_id}/profiles").json()["items"][0]
    assert (found["status"], found["reason"]) == ("failed", "No space left on device")
    assert drive.status_of(attempt.job)[0] == "running"
    assert api.send("POST", f"jobs/{attempt.job_id}:profile").status_code == 202


def test_it_is_ready_when_every_node_has_brought_its_ranks(
    api: Api, agent: AgentClient, attempt: Attempt, submit: Callable[..., Job]
) -> None:
    spec = attempt.job.resolved_spec
    Job.objects.filter(pk=attempt.job_id).update(resolved_spec={**spec, "resources": {**spec["resources"], "nodes": 2}})
    api.send("POST", f"jobs/{attempt.job_id}:profile")
    traces = traces_of(attempt)
    for node in (1, 1, 0):
        assert Profile.objects.get().state == "requested"
        one = {**traces, "node_rank": node, "files": [traces["files"][node]]}
        assert agent("POST", "profiles", one).status_code == 201
    assert Profile.objects.get().state == "ready"
    files = api.send("GET", f"artifacts/{Profile.objects.get().artifact_id}").json()["files"]
    assert [file["path"] for file in files] == ["steps-9-11-rank-0.json.gz", "steps-9-11-rank-1.json.gz"]


def test_an_agent_can_bring_only_what_was_asked_of_it_and_is_its_own(
    api: Api, agent: AgentClient, attempt: Attempt, submit: Callable[..., Job]
) -> None:
    assert agent("POST", "profiles", traces_of(attempt)).status_code == 404
    api.send("POST", f"jobs/{attempt.job_id}:profile")
    other = drive.start(submit(name="other"))
    assert agent("POST", "profiles", traces_of(other)).json()["code"] == "outside_prefix"
    absent = traces_of(attempt)
    absent["files"][0]["parts"][0]["key"] += "-absent"
    assert agent("POST", "profiles", absent).json()["code"] == "part_missing"
    assert AgentClient(tokens.issue(other.id))("POST", "profiles", traces_of(other)).status_code == 404
    assert Profile.objects.get().state == "requested"


def test_the_request_is_in_the_audit_trail(api: Api, attempt: Attempt) -> None:
    api.send("POST", f"jobs/{attempt.job_id}:profile", {"steps": 4})
    record = AuditEvent.objects.get(action="job.profile")
    assert (record.target_id, record.after["steps"]) == (attempt.job_id, 4)


def test_what_is_stored_of_a_profile_opens_with_the_jobs_key_alone(attempt: Attempt) -> None:
    part = stored_part(attempt, "profiles/1-1/x", b"trace")
    assert b"trace" not in storage.get(part.key)
    assert keys.encryptor(attempt.job_id, attempt.job.team).decrypt(storage.get(part.key), part) == b"trace"
