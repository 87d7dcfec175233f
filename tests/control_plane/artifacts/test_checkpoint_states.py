"""Administrators mark checkpoints as damaged or intact, and retire them."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from athanor.accounts.models import AuditEvent, Team, User
from athanor.accounts.roles import Role, Scope
from athanor.accounts.services import issue_token
from athanor.artifacts import deletions, storage
from athanor.artifacts import services as artifacts
from athanor.artifacts.checkpoint_states import ENDED, NONE_LEFT
from athanor.artifacts.models import Checkpoint
from athanor.dispatch import tokens
from athanor.jobs.models import Attempt, Job, JobEvent
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient, manifest_of, stored_part
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db
REASON = {"reason": "disk 7 lost a block"}


@pytest.fixture
def attempt(submit: Callable[..., Job], bucket: str) -> Attempt:
    return drive.start(submit())


@pytest.fixture
def saved(attempt: Attempt) -> list[Checkpoint]:
    """Two checkpoints, the older one first."""
    return [register(attempt, step) for step in (10, 20)]


@pytest.fixture
def admin(make_user: Callable[..., User], team: Team, api_of: Callable[[User, Team], Api]) -> Api:
    return api_of(make_user("root", team, Role.ADMIN), team)


def register(attempt: Attempt, step: int, **fields: Any) -> Checkpoint:
    part = stored_part(attempt, f"checkpoints/{step}/rank0")
    return artifacts.register_checkpoint(attempt, manifest_of(attempt, step, [part]).model_copy(update=fields))


def act(client: Api, row: Checkpoint, verb: str) -> tuple[int, dict[str, Any]]:
    answer = client.send("POST", f"checkpoints/{row.id}:{verb}", REASON)
    return answer.status_code, answer.json()


def refusal(client: Api, row: Checkpoint, verb: str) -> tuple[str, str]:
    """Return the code and the detail of a request that is refused, and check that it says what to do."""
    status, problem = act(client, row, verb)
    assert status == 409, problem
    assert problem["remedy"]
    return problem["code"], problem["detail"]


def resumed_step(attempt: Attempt) -> int:
    config = AgentClient(tokens.issue(attempt.id))("GET", "run").json()
    return int(config["resume"]["step"])


def records(row: Checkpoint) -> list[tuple[str, str, str]]:
    """Return the events of a checkpoint and the records of it in the audit trail, with who and why."""
    events = JobEvent.objects.filter(job=row.job_id, data__checkpoint=row.id).exclude(type="checkpoint.registered")
    found = [(each.type, each.actor, each.data["because"]) for each in events.order_by("seq")]
    audited = AuditEvent.objects.filter(target_id=row.id).order_by("seq")
    return found + [(each.action, each.actor, each.after["reason"]) for each in audited]


def test_an_admin_takes_a_checkpoint_out_of_use_and_back(admin: Api, saved: list[Checkpoint], attempt: Attempt) -> None:
    newest, why = saved[1], REASON["reason"]
    for _ in range(2):  # the second request finds it done
        status, shown = act(admin, newest, "mark_damaged")
        assert (status, shown["state"], shown["damage"]) == (200, "damaged", why)
        assert shown["notice"] == "The next start of the job resumes from the checkpoint of step 10."
    assert resumed_step(attempt) == 10
    listed = admin.send("GET", f"jobs/{attempt.job_id}/checkpoints").json()["items"]
    assert [(each["step"], each["state"], each["damage"]) for each in listed] == [
        (20, "damaged", why),
        (10, "intact", ""),
    ]
    for _ in range(2):
        status, shown = act(admin, newest, "mark_intact")
        assert (status, shown["state"], shown["damage"]) == (200, "intact", "")
    assert resumed_step(attempt) == 20
    assert records(newest) == [
        ("checkpoint.damaged", "root", why),
        ("checkpoint.intact", "root", why),
        ("checkpoint.mark_damaged", "root", why),
        ("checkpoint.mark_intact", "root", why),
    ]


def test_a_retired_checkpoint_is_deleted_from_the_store(admin: Api, saved: list[Checkpoint]) -> None:
    older = saved[0]
    for _ in range(2):
        status, shown = act(admin, older, "retire")
        assert status == 200
        assert shown["retired_at"]
    assert artifacts.sweep_retired() == 1
    assert storage.size_of(older.manifest["files"][0]["parts"][0]["key"]) is None
    why = REASON["reason"]
    assert records(older) == [("checkpoint.retired", "root", why), ("checkpoint.retire", "root", why)]
    for verb in ("mark_damaged", "mark_intact"):
        code, detail = refusal(admin, older, verb)
        assert (code, f"{older.id} of step 10 was retired" in detail) == ("checkpoint_retired", True)


def test_what_an_unfinished_job_needs_is_not_retired(admin: Api, attempt: Attempt, saved: list[Checkpoint]) -> None:
    older, newest = saved
    job = Job.objects.get(pk=attempt.job_id)
    code, detail = refusal(admin, newest, "retire")
    assert code == "checkpoint_needed"
    assert detail == f"{newest.id} of step 20 is what {job.name} ({job.id}, {job.status}) resumes from"
    for row in saved:
        act(admin, row, "mark_damaged")
    code, detail = refusal(admin, older, "retire")
    assert code == "checkpoint_needed"
    assert "would train again from the first step" in detail


def test_the_checkpoint_that_will_be_exported_is_not_retired(
    admin: Api, submit: Callable[..., Job], bucket: str
) -> None:
    attempt = drive.start(submit(checkpoint={"every_steps": 10, "keep_last": 3, "keep_best": True}))
    best = register(attempt, 10, metrics={"evaluation/best_loss": 2.0, "evaluation/best_step": 10.0})
    register(attempt, 20, metrics={"evaluation/best_loss": 2.0, "evaluation/best_step": 10.0})
    code, detail = refusal(admin, best, "retire")
    assert (code, "lowest held-out loss" in detail) == ("checkpoint_needed", True)
    act(admin, best, "mark_damaged")
    assert act(admin, best, "retire")[0] == 200, "the remedy: nothing exports a damaged one"


def test_a_deleted_checkpoint_is_refused_until_it_is_restored(
    admin: Api, attempt: Attempt, saved: list[Checkpoint], user: User
) -> None:
    Job.objects.filter(pk=attempt.job_id).update(status="failed")
    deletion = deletions.delete(Checkpoint.objects.get(pk=saved[0].pk), user)
    for verb in ("mark_damaged", "mark_intact", "retire"):
        code, detail = refusal(admin, saved[0], verb)
        assert (code, detail) == ("checkpoint_deleted", f"{saved[0].id} of step 10 is deleted by {deletion.id}")
    deletions.restore(deletion, user)
    assert act(admin, saved[0], "mark_damaged")[1]["notice"] == ENDED


def test_a_diverged_checkpoint_does_not_become_intact(admin: Api, saved: list[Checkpoint]) -> None:
    Checkpoint.objects.filter(pk=saved[1].pk).update(diverged_at=timezone.now())
    assert refusal(admin, saved[1], "mark_intact")[0] == "checkpoint_diverged"


@pytest.mark.parametrize("content", [None, b"short"])
def test_a_checkpoint_of_which_a_part_is_missing_does_not_become_intact(
    admin: Api, saved: list[Checkpoint], content: bytes | None
) -> None:
    part = saved[1].manifest["files"][0]["parts"][0]
    whole = storage.get(part["key"])
    assert whole is not None
    act(admin, saved[1], "mark_damaged")
    storage.delete([part["key"]]) if content is None else storage.put(part["key"], content)
    code, detail = refusal(admin, saved[1], "mark_intact")
    assert (code, part["key"] in detail) == ("checkpoint_incomplete", True)
    storage.put(part["key"], whole)
    assert act(admin, saved[1], "mark_intact")[1]["state"] == "intact", "the remedy"


def test_a_job_without_an_intact_checkpoint_continues_after_what_the_notice_says(
    admin: Api, api: Api, attempt: Attempt, saved: list[Checkpoint]
) -> None:
    """Follow the notice: pause, restore the object, mark as intact, resume."""
    part = saved[1].manifest["files"][0]["parts"][0]
    backup = storage.get(part["key"])
    assert backup is not None
    storage.put(part["key"], b"")
    act(admin, saved[0], "mark_damaged")
    assert act(admin, saved[1], "mark_damaged")[1]["notice"] == NONE_LEFT
    answer = AgentClient(tokens.issue(attempt.id))("GET", "run")
    assert answer.json()["code"] == "no_intact_checkpoint", "its next start would fail"
    assert api.send("POST", f"jobs/{attempt.job_id}:pause").status_code == 202
    storage.put(part["key"], backup)
    notice = act(admin, saved[1], "mark_intact")[1]["notice"]
    assert notice == "The next start of the job resumes from the checkpoint of step 20."
    assert api.send("POST", f"jobs/{attempt.job_id}:resume").status_code == 202
    assert resumed_step(attempt) == 20


def test_only_administrators_of_the_team_may(
    api: Api, saved: list[Checkpoint], other_team: Team, make_user: Callable[..., User],
    api_of: Callable[[User, Team], Api], team: Team,
) -> None:  # fmt: skip
    narrow = Api()
    token = issue_token(make_user("kim", team, Role.ADMIN), team, "t", scopes=[Scope.READ, Scope.SUBMIT])[1]
    narrow.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    stranger = api_of(make_user("eve", other_team, Role.ADMIN), other_team)
    for verb in ("mark_damaged", "mark_intact", "retire"):
        assert act(api, saved[0], verb)[0] == 403, "a member"
        assert act(narrow, saved[0], verb)[0] == 403
        assert act(stranger, saved[0], verb)[0] == 404
    row = Checkpoint.objects.get(pk=saved[0].pk)
    assert (row.state, row.retired_at) == ("intact", None)


def test_a_reason_is_needed(admin: Api, saved: list[Checkpoint]) -> None:
    for body in ({}, {"reason": ""}, {"reason": 5}, {"reason": "x", "because": "y"}):
        answer = admin.send("POST", f"checkpoints/{saved[0].id}:retire", body)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == ("/because" if "because" in body else "/reason")
    assert Checkpoint.objects.get(pk=saved[0].pk).retired_at is None
