"""Migration of a database of the first version, with its jobs."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.db.migrations.executor import MigrationExecutor

from athanor.accounts.audit_chain import KEY_OWNER, head_mac
from athanor.artifacts.manifests import OF_ARTIFACTS
from athanor.core import encryption
from trainer.contract.encryption import Encryptor, check_manifest, new_keyset
from trainer.contract.manifest import UploadManifest

FIRST_VERSION = [
    ("accounts", "0001_initial"),
    ("artifacts", "0001_initial"),
    ("clusters", "0001_initial"),
    ("jobs", "0002_attempt_cancels_sent"),
    ("telemetry", "0001_initial"),
]
ALIAS = "upgraded"
JOBS = 30
THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def empty_database(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """Create a separate database, known to Django under ALIAS."""
    with django_db_blocker.unblock():
        yield from _database()


def _database() -> Iterator[str]:
    name = f"athanor_upgrade_{uuid.uuid4().hex[:12]}"
    settings = {**connections.settings["default"], "NAME": name}
    settings["OPTIONS"] = {key: value for key, value in settings["OPTIONS"].items() if key != "pool"}
    maker = connection.copy()
    maker.settings_dict = {**maker.settings_dict, "OPTIONS": settings["OPTIONS"]}
    with maker.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    connections.settings[ALIAS] = settings
    yield ALIAS
    connections[ALIAS].close()
    del connections[ALIAS]
    del connections.settings[ALIAS]
    with maker.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name}")
    maker.close()


def migrate(targets: Any) -> Any:
    executor = MigrationExecutor(connections[ALIAS])
    executor.migrate(targets or executor.loader.graph.leaf_nodes())
    return executor.loader.project_state(targets or executor.loader.graph.leaf_nodes()).apps


def fill(apps: Any) -> list[dict[str, Any]]:
    """Insert jobs as the first version stored them. Return their ids, names and states."""

    def make(app: str, model: str, **values: Any) -> Any:
        return apps.get_model(app, model).objects.using(ALIAS).create(**values)

    team = make("accounts", "Team", id="team_0", name="red", max_slots=4)
    user = make("accounts", "User", id="user_0", username="ada")
    make("accounts", "Membership", user=user, team=team, role="member")
    cluster = make("clusters", "Cluster", id="cls_0", name="local", kind="local", config={})
    pool = make("clusters", "Pool", id="pool_0", cluster=cluster, name="cpu", slots_per_node=8, memory_bytes=2**30)
    for number in range(JOBS):
        status = ("succeeded", "running", "queued")[number % 3]
        job = make(
            "jobs", "Job", id=f"job_{number:026}", team=team, created_by=user, name=f"job-{number}",
            project=("default", "vision")[number % 2], spec={"name": f"job-{number}"}, resolved_spec={"steps": 10},
            spec_digest="d", pool=pool, slots=1, dataset_id="dset_0", status=status, event_seq=2,
        )  # fmt: skip
        for seq in (1, 2):
            make("jobs", "JobEvent", job=job, seq=seq, type="job.status", time=THEN, actor="ada", data={"n": seq})
        if status != "queued":
            attempt = make(
                "jobs", "Attempt", id=f"att_{number:026}", job=job, number=1, backend_name=f"ath-{number}",
                status="ended" if status == "succeeded" else "running",
            )  # fmt: skip
            make("telemetry", "Progress", job=job, step=number, values={"train/loss": 2.5})
            make("telemetry", "LogChunk", attempt=attempt, content=b"x", count=3, first_line=0)
    return kept(apps)


def kept(apps: Any) -> list[dict[str, Any]]:
    jobs = apps.get_model("jobs", "Job").objects.using(ALIAS)
    fields = ("id", "name", "status", "project", "team_id", "created_by_id", "spec", "resolved_spec", "created_at")
    return list(jobs.order_by("id").values(*fields, "progress__step", "attempts__id", "attempts__status"))


@pytest.mark.slow
def test_the_head_of_an_audit_trail_of_before_is_authenticated(empty_database: str) -> None:
    apps = migrate([("accounts", "0007_limits_are_quotas")])
    wrapped = encryption.wrap_by_master("key", KEY_OWNER)
    heads = apps.get_model("accounts", "AuditHead").objects.using(ALIAS)
    heads.create(id=1, seq=7, digest="d" * 64, wrapped_key=wrapped)
    head = migrate(None).get_model("accounts", "AuditHead").objects.using(ALIAS).get()
    assert head.mac == head_mac(b"key", 7, "d" * 64)


@pytest.mark.slow
def test_manifests_of_before_are_authenticated_as_they_are(empty_database: str) -> None:
    fill(migrate(FIRST_VERSION))
    apps = migrate([("artifacts", "0006_sizes_of_preparations")])

    def rows(model: str) -> Any:
        return apps.get_model("artifacts", model).objects.using(ALIAS)

    team_key, data_key = encryption.new_wrapping_keyset(), new_keyset()
    job, attempt = f"job_{0:026}", f"att_{0:026}"
    rows("TeamKey").create(team_id="team_0", wrapped=encryption.wrap_by_master(team_key, "team_0"))
    rows("DataKey").create(owner=job, team_id="team_0", wrapped=encryption.wrap(team_key, data_key, job))
    part = {"key": f"jobs/{job}/x", "size": 1, "sha256": "0" * 64, "plaintext_size": 1}
    files = [{"path": "x", "parts": [part]}]
    model = {"job_id": job, "attempt_id": attempt, "step": 5, "num_parameters": 1, "created_at": "2026-01-01T00:00:00Z"}
    made = {"model": {**model, "kind": "model", "files": files}, "profile": {"kind": "profile", "files": files},
            "log": {"kind": "log", "files": files}}  # fmt: skip
    for kind, manifest in made.items():
        rows("Artifact").create(
            id=f"art_{kind}", job_id=job, attempt_id=attempt, step=5, size_bytes=1, kind=kind, name=kind,
            manifest=manifest,
        )  # fmt: skip
    rows("DataKey").create(owner="dset_up", team_id="team_0", wrapped=encryption.wrap(team_key, data_key, "dset_up"))
    rows("Dataset").create(id="dset_up", team_id="team_0", name="up", origin="sealed", files=files)
    # Its key is gone: it stays without a tag, which is refused.
    other = f"job_{1:026}"
    rows("Artifact").create(
        id="art_lost", job_id=other, attempt_id=f"att_{1:026}", step=5, size_bytes=1, kind="model", name="lost",
        manifest={**model, "kind": "model", "files": files},
    )  # fmt: skip
    apps = migrate(None)
    encryptor = Encryptor(data_key)
    for kind, (type_, step) in OF_ARTIFACTS.items():
        manifest = type_.model_validate(rows("Artifact").get(pk=f"art_{kind}").manifest)
        check_manifest(manifest, encryptor, job_id=job, attempt_id=attempt, **{step: 5})
    upload = rows("Dataset").get(pk="dset_up")
    check_manifest(UploadManifest(dataset_id="dset_up", files=upload.files, tag=upload.tag), encryptor)
    assert "tag" not in rows("Artifact").get(pk="art_lost").manifest


def test_every_job_of_the_first_version_is_kept_with_its_events(empty_database: str) -> None:
    before = fill(migrate(FIRST_VERSION))
    assert len(before) == JOBS
    apps = migrate(None)
    assert kept(apps) == before
    events = apps.get_model("jobs", "JobEvent").objects.using(ALIAS)
    assert events.count() == 2 * JOBS
    assert set(events.values_list("type", "actor", "time")) == {("job.status", "ada", THEN)}
    projects = apps.get_model("jobs", "Project").objects.using(ALIAS)
    assert sorted(projects.values_list("team_id", "name")) == [("team_0", "default"), ("team_0", "vision")]
    leaf = apps.get_model("quotas", "QuotaNode").objects.using(ALIAS).get(team_id="team_0")
    assert (leaf.name, leaf.parent.name, leaf.max_slots, leaf.max_running_jobs) == ("red", "organisation", 4, None)
    chunks = apps.get_model("telemetry", "LogChunk").objects.using(ALIAS)
    assert set(chunks.values_list("first_line", "last_line")) == {(0, 2)}


@pytest.mark.slow
def test_tokens_of_before_get_an_end_and_lose_a_scope_that_was_never_theirs(empty_database: str) -> None:
    apps = migrate([("accounts", "0007_limits_are_quotas")])
    users, tokens = (apps.get_model("accounts", name).objects.using(ALIAS) for name in ("User", "ApiToken"))
    team = apps.get_model("accounts", "Team").objects.using(ALIAS).create(id="team_0", name="red")
    now, day = datetime.now(UTC), timedelta(days=1)
    for role in ("none", "platform_admin"):
        user = users.create(id=f"user_{role}", username=role, platform_role=role)
        for name, end in (("endless", None), ("short", now + day), ("far", now + 3000 * day)):
            tokens.create(
                id=f"tok_{role}_{name}", user=user, team=team, name=name, prefix="ath_", digest=f"{role}{name}",
                expires_at=end, scopes=["read", "platform"],
            )  # fmt: skip
    tokens = migrate(None).get_model("accounts", "ApiToken").objects.using(ALIAS)
    for row in tokens.all():
        days = (row.expires_at - now) / day
        assert (days == 1) if row.name == "short" else (365 <= days < 366), row.id
        assert row.parent_id is None
        assert row.scopes == (["read", "platform"] if row.user_id == "user_platform_admin" else ["read"])
    assert tokens.count() == 6
