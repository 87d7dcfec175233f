"""Deletion of a team: access ends, it can be undone, then the team is erased and a certificate is written."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from athanor.accounts import audit, members
from athanor.accounts.models import ApiToken, AuditEvent, Membership, PlatformRole, Role, Team, User
from athanor.accounts.services import issue_token
from athanor.accounts.stream_sessions import StreamSession, authorized_sessions
from athanor.artifacts import deletions, keys, registry, storage, team_secrets, uploads
from athanor.artifacts.models import (
    Artifact,
    Checkpoint,
    DataKey,
    Dataset,
    Deletion,
    EvaluationResult,
    ModelAlias,
    ModelVersion,
    RegisteredModel,
    ReplayedSegment,
    TeamKey,
    TeamSecret,
)
from athanor.compliance import certificates, erasure
from athanor.compliance.models import Erasure
from athanor.core import encryption
from athanor.core.errors import Conflict, Gone, Misconfigured
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.states import JobStatus
from athanor.quotas import services as quotas
from athanor.quotas.models import QuotaGrant
from athanor.telemetry.models import LogChunk
from athanor.webhooks import delivering, publishing
from athanor.webhooks.models import Delivery, Webhook
from tests.control_plane import drive
from tests.control_plane.artifacts.test_data_of_jobs import upload
from tests.control_plane.artifacts.test_manifests import registered
from tests.control_plane.conftest import Api
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(make_user: Callable[..., User], other_team: Team) -> Api:
    """A platform administrator, who is in another team."""
    user = make_user("olga", other_team)
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    client = Api()
    client.force_login(User.objects.get(pk=user.pk))
    return client


@pytest.fixture
def job(api: Api, submit: Callable[..., Job], world: Any, bucket: str, user: User, team: Team) -> Job:
    """An ended job with a checkpoint and junk; a data set, a secret and a webhook of the team."""
    made = submit()
    attempt = drive.start(made)
    registered(attempt, 10)
    storage.put(f"jobs/{made.id}/junk", b"junk")
    drive.report(attempt, EndClass.BAD_SPEC)
    world.finish(attempt.backend_name, 1)
    drive.settle()
    Attempt.objects.update(ended_at=timezone.now() - timedelta(hours=2))  # URLs for it have expired
    made.refresh_from_db()
    assert made.status == JobStatus.FAILED
    assert upload(api, b"text", name="one").status_code == 201
    team_secrets.put(team, "hub", "value", user)
    Webhook.objects.create(team=team, url="https://example.org/", position=0)
    publishing.publish_due()
    return made


def over() -> None:
    Deletion.objects.update(purge_after=timezone.now())


def objects_of(job: Job) -> list[str]:
    prefixes = (f"jobs/{job.id}/", f"teams/{job.team_id}/")
    return [item.key for prefix in prefixes for item in storage.page(prefix).items]


def test_a_deleted_team_is_gone_for_its_members_at_once_and_comes_back(
    operator: Api, api: Api, job: Job, team: Team, user: User
) -> None:
    account = members.create_service_account(team, "ci", Role.MEMBER, user)
    robot = Api()
    robot.credentials(HTTP_AUTHORIZATION=f"Bearer {issue_token(account, team, 'ci')[1]}")
    session = Api()
    session.force_login(user)
    stream = StreamSession(user.id, frozenset({team.id}), token_id=ApiToken.objects.get(user=user).id)
    preview = operator.send("GET", f"teams/{team.id}/deletion").json()
    assert (preview["kind"], preview["checkpoints"], preview["blocked_by"]) == ("team", 1, [])
    wanted = {"members": 1, "service_accounts": 1, "tokens": 2, "projects": 1, "jobs": 1, "secrets": 1, "webhooks": 1}
    assert wanted.items() <= preview["contents"].items()
    assert authorized_sessions([stream]) == {stream}
    assert delivering.due_now().exists()

    deletion = operator.send("DELETE", f"teams/{team.id}").json()
    assert (deletion["kind"], deletion["state"], deletion["name"]) == ("team", "pending", "red")
    assert api.send("GET", "jobs").status_code == robot.send("GET", "jobs").status_code == 401
    assert session.send("GET", f"jobs/{job.id}").status_code == 404
    assert session.send("GET", "session").json()["teams"] == []
    assert authorized_sessions([stream]) == set()
    assert not delivering.due_now().exists()
    assert operator.send("GET", f"teams/{team.id}").status_code == 404
    assert [row["id"] for row in operator.send("GET", "deletions").json()["items"]] == [deletion["id"]]
    assert erasure.run_due() == 0, "its window has just begun"
    assert operator.send("GET", f"deletions/{deletion['id']}/certificate").status_code == 404

    assert operator.send("POST", f"deletions/{deletion['id']}:restore").json()["state"] == "restored"
    assert api.send("GET", f"jobs/{job.id}").status_code == robot.send("GET", "jobs").status_code == 200
    assert delivering.due_now().exists()


def test_an_erased_team_cannot_be_read_even_with_copies_of_its_objects(
    operator: Api, job: Job, team: Team, tmp_path: Path
) -> None:
    checkpoint = Checkpoint.objects.get()
    part = checkpoint.manifest["files"][0]["parts"][0]
    copied = storage.get(part["key"])
    assert copied
    wrapped = bytes(DataKey.objects.get(owner=job.id).wrapped)
    stored = len(objects_of(job))
    drive.register_model(drive.attempt_of(job))
    model = registry.create(team, job.created_by, name="bot")
    registry.register(model, Artifact.objects.select_related("job").get(job=job), job.created_by, "production")
    assert ModelAlias.objects.exists()
    EvaluationResult.objects.create(
        team=team, job=job, attempt=drive.attempt_of(job), artifact=Artifact.objects.get(job=job), name="facts",
        metric="accuracy", source="dataset:facts", value=0.5, n=1, tokens=1,
    )  # fmt: skip
    ReplayedSegment.objects.create(
        team=team, job=job, attempt=drive.attempt_of(job), replayed=job, number=0, end="ckp_1", first_step=0,
        last_step=1, verdict="equal", is_exact=True, tolerance=0.05, tensors=1, differing=0,
    )  # fmt: skip
    events = AuditEvent.objects.count()
    deletion = operator.send("DELETE", f"teams/{team.id}?permanently=true").json()
    assert (erasure.run_due(), erasure.run_due()) == (1, 0)

    assert objects_of(job) == []
    for table in (
        TeamKey, DataKey, TeamSecret, Webhook, Delivery, Dataset, Artifact, Checkpoint, JobEvent, LogChunk,
        RegisteredModel, ModelVersion, ModelAlias, EvaluationResult, ReplayedSegment,
    ):  # fmt: skip
        assert not table._default_manager.exists(), table
    assert not Membership.objects.filter(team=team).exists()
    assert not ApiToken.objects.filter(team=team).exists()
    with pytest.raises(Misconfigured):  # another team's key, or a new one, does not open what the destroyed key wrapped
        encryption.unwrap(encryption.new_wrapping_keyset(), wrapped, job.id)
    with pytest.raises(Gone):
        keys.data_key(job.id, team)
    job.refresh_from_db()
    assert (job.spec, job.resolved_spec, job.name) == ({}, {}, "tiny"), "the cost ledger refers to it by name"
    assert AuditEvent.objects.count() > events
    assert list(audit.verify()) == []
    assert Team.objects.get(pk=team.pk).name.startswith("red-erased-"), "the name is free"

    certificate = operator.send("GET", f"deletions/{deletion['id']}/certificate").json()
    assert certificate["team"] == {"id": team.id, "name": "red"}
    assert certificate["keys"]["team_key"]["count"] == 1
    assert certificate["keys"]["datakey"]["count"] == 2
    assert certificate["objects"]["count"] == stored
    event = AuditEvent.objects.get(action="team.erased")
    assert certificate["audit"] == {"seq": event.seq, "digest": event.digest}
    names = {"kind", "version", "audit", "key", "mac"}
    content = {name: value for name, value in certificate.items() if name not in names}
    assert event.after["sha256"] == certificates.digest_of(content)
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(certificate))
    call_command("verify_erasure", str(file))
    file.write_text(json.dumps({**certificate, "objects": {**certificate["objects"], "count": 0}}))
    with pytest.raises(CommandError, match="was changed"):
        call_command("verify_erasure", str(file))


def test_it_waits_for_urls_that_still_write_and_continues_where_it_was_killed(
    operator: Api, job: Job, team: Team
) -> None:
    operator.send("DELETE", f"teams/{team.id}?permanently=true")
    Attempt.objects.update(ended_at=timezone.now())
    assert erasure.run_due() == 0
    assert not TeamKey.objects.exists(), "what is stored cannot be read from now on"
    assert objects_of(job), "a node of the last attempt might still upload"
    deletion = operator.send("GET", "deletions").json()["items"][0]
    assert deletion["state"] == "purging"
    assert operator.send("POST", f"deletions/{deletion['id']}:restore").status_code == 409
    Attempt.objects.update(ended_at=timezone.now() - timedelta(hours=2))
    assert erasure.run_due(max_pages=1) == 0
    assert Erasure.objects.get().certificate is None
    while not erasure.run_due(max_pages=2):
        assert Deletion.objects.get(kind="team").purged_at is None
    assert objects_of(job) == []


def test_other_deletions_of_the_team_do_not_stop_the_sweeper(operator: Api, api: Api, job: Job, team: Team) -> None:
    api.send("DELETE", f"checkpoints/{Checkpoint.objects.get().id}")
    operator.send("DELETE", f"teams/{team.id}")
    over()
    assert deletions.purge_due() == 0
    assert erasure.run_due() == 1
    assert list(Deletion.objects.values_list("kind", flat=True)) == ["team"]


def test_only_platform_administrators_delete_teams_and_not_with_unfinished_jobs(
    operator: Api, api_of: Any, make_user: Any, submit: Callable[..., Job], team: Team, other_team: Team
) -> None:
    head = api_of(make_user("hal", team, Role.ADMIN), team)
    stranger = api_of(make_user("sam", other_team, Role.ADMIN), other_team)
    assert head.send("GET", f"teams/{team.id}/deletion").status_code == 200
    assert head.send("DELETE", f"teams/{team.id}").status_code == 403
    assert stranger.send("DELETE", f"teams/{team.id}").status_code == 404
    waiting = submit()
    refused = operator.send("DELETE", f"teams/{team.id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "still_needed")
    assert waiting.id in refused.json()["detail"]
    Job.objects.filter(pk=waiting.pk).update(status=JobStatus.CANCELLED)
    deletion = operator.send("DELETE", f"teams/{team.id}").json()
    assert stranger.send("GET", "deletions").json()["items"] == []
    assert stranger.send("POST", f"deletions/{deletion['id']}:restore").status_code == 404


def test_a_submission_under_way_does_not_get_into_a_deleted_team(
    operator: Api, team: Team, submit: Callable[..., Job], user: User
) -> None:
    operator.send("DELETE", f"teams/{team.id}")
    with pytest.raises(Conflict, match="is deleted"):
        submit()
    assert not Job.objects.exists()


def test_an_erased_teams_slots_return_and_its_accounts_are_retired(
    operator: Api, job: Job, team: Team, user: User
) -> None:
    leaf = quotas.leaf_of(team)
    QuotaGrant.objects.create(node=leaf, accelerator="cpu", nominal=4)
    account = members.create_service_account(team, "ci", Role.MEMBER, user)
    deletion = operator.send("DELETE", f"teams/{team.id}?permanently=true").json()
    assert erasure.run_due() == 1
    assert not QuotaGrant.objects.filter(node=leaf).exists()
    assert AuditEvent.objects.filter(action="quota.change", actor="olga").exists()
    assert not User.objects.get(pk=account.pk).is_active
    certificate = operator.send("GET", f"deletions/{deletion['id']}/certificate").json()
    assert certificate["records"]["service_accounts"] == 1
    assert certificate["keys"]["teamsecret"]["count"] == 1


def test_an_upload_that_outlasts_the_deletion_leaves_nothing(
    operator: Api, team: Team, user: User, bucket: str
) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"first "
        assert operator.send("DELETE", f"teams/{team.id}").status_code == 200
        yield b"second"

    with pytest.raises(Conflict, match="is deleted"):
        uploads.upload(team, user, "slow", [uploads.NewFile("a.txt", "text", chunks())])
    assert not Dataset.objects.exists()
    assert storage.page(f"teams/{team.id}/").items == []
