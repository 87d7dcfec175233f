"""Objects of every kind in team red, for tests that walk all endpoints, and people who administer."""

from collections.abc import Callable

import pytest
from django.utils import timezone

from athanor.accounts import members
from athanor.accounts.models import Team, User
from athanor.accounts.roles import Role
from athanor.accounts.services import issue_token
from athanor.alerts import services as alert_rules
from athanor.artifacts import grants, registry, signing_keys, team_secrets
from athanor.artifacts.models import Artifact, Checkpoint, Dataset, Deletion, ModelAlias, ModelVersion, Profile
from athanor.budgets.models import Budget, Series
from athanor.clusters.models import Node
from athanor.jobs.models import Job, Project
from athanor.quotas import services as quotas
from athanor.scheduling.models import AdmissionCycle, Simulation
from athanor.webhooks import services as webhooks
from tests.control_plane import drive
from tests.control_plane.conftest import Api


@pytest.fixture
def foreign(submit: Callable[..., Job]) -> dict[str, str]:
    """Return the ids of team red's objects."""
    job = submit()
    attempt = drive.start(job)
    webhook, _ = webhooks.create(job.team, url="https://example.org/", name="", types=[], actor=job.created_by)
    stored = {"job": job, "attempt": attempt, "step": 1, "size_bytes": 0, "manifest": {"files": [], "world_size": 1}}
    Profile.objects.create(job=job, attempt=attempt, number=1, steps=3, requested_by="ada")
    artifact = Artifact.objects.create(kind="model", name="m", **stored)
    model = registry.create(job.team, job.created_by, name="bot")
    version = ModelVersion.objects.create(model=model, number=1, artifact=artifact, digest="0" * 64)
    ModelAlias.objects.create(model=model, name="production", version=version, moved_at=timezone.now())
    return {
        "cluster_id": job.pool.cluster_id,
        "pool_name": "no-such-pool",
        "pool_id": job.pool_id,
        "series_id": Series.objects.create(kind="price", pool=job.pool).id,
        "budget_id": Budget.objects.create(
            node=quotas.leaf_of(job.team), name="ours", unit="slot_hours", period="month", amount=3600
        ).id,
        "node_name": Node.objects.create(cluster=job.pool.cluster, name="node-of-the-fake").name,
        "job_id": job.id,
        "attempt_id": attempt.id,
        "artifact_id": artifact.id,
        "model_id": version.model_id,
        "version_number": str(version.number),
        "alias": "production",
        "team_name": grants.grant(model, Team.objects.create(name="readers"), job.created_by).team.name,
        "checkpoint_id": Checkpoint.objects.create(generation=0, **stored).id,
        "team_id": job.team_id,
        "dataset_id": Dataset.objects.create(team=job.team, name="books", origin=Dataset.Origin.SEALED).id,
        "session_id": "1",
        "passkey_id": "1",
        "deletion_id": Deletion.objects.create(
            team=job.team, kind="dataset", target_id="dset_1", name="old", size_bytes=1, purge_after=timezone.now()
        ).id,
        "user_id": job.created_by_id,
        "invitation_id": members.invite(job.team, Role.MEMBER, 1, "", job.created_by)[0].id,
        "account_id": members.create_service_account(job.team, "ci", Role.MEMBER, job.created_by).id,
        "project_id": Project.objects.get(team=job.team).id,
        "webhook_id": webhook.id,
        "alert_rule_id": alert_rules.create(
            job.team, job.created_by, name="waits", measure="queue_wait", threshold=1e6
        ).id,
        "delivery_id": webhooks.test(webhook, job.created_by).id,
        "simulation_id": Simulation.objects.create(created_by=job.created_by, request={"history_days": 1}).id,
        "decision_id": str(AdmissionCycle.objects.latest("id").pk),
        "secret_id": team_secrets.put(job.team, "hf-token", "x", job.created_by)[0].id,
        "signing_key_id": signing_keys.rotate(job.team, job.created_by).id,
        "token_id": issue_token(job.created_by, job.team, "red's")[0].id,
    }


@pytest.fixture
def admin(api_of: Callable, make_user: Callable, team: Team) -> Api:
    """An administrator of the team."""
    client: Api = api_of(make_user("hal", team, Role.ADMIN), team)
    return client


@pytest.fixture
def operator(make_user: Callable[..., User], other_team: Team) -> Api:
    """An administrator of the platform."""
    user = make_user("root", other_team)
    User.objects.filter(pk=user.pk).update(platform_role="platform_admin")
    client = Api()
    client.force_login(User.objects.get(pk=user.pk))
    return client
