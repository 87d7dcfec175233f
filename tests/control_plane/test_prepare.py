"""What a container of an installation runs before web, worker and beat: everything missing is made, nothing changed."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db.migrations.recorder import MigrationRecorder

from athanor.accounts.models import ApiToken, Membership, User
from athanor.artifacts import storage
from athanor.clusters.models import Cluster, Pool
from athanor.config import program
from athanor.config.env import BOOTSTRAP_PASSWORD

FIRST = "the password of the environment"


@pytest.mark.django_db(transaction=True)
def test_it_makes_what_is_missing_and_shows_no_secret(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOOTSTRAP_PASSWORD, FIRST)
    shown = StringIO()
    call_command("prepare", stdout=shown)
    made = User.objects.get(username="admin")
    assert made.check_password(FIRST)
    assert Membership.objects.filter(user=made, team__name="demo").exists()
    assert Pool.objects.filter(cluster__name="local").exists()
    assert not ApiToken.objects.filter(user=made).exists()
    assert FIRST not in shown.getvalue()


@pytest.mark.django_db(transaction=True)
def test_workers_that_run_no_jobs_themselves_need_no_local_cluster(bucket: str) -> None:
    call_command("prepare", no_local_cluster=True, stdout=StringIO())
    assert User.objects.filter(username="admin").exists()
    assert not Cluster.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_what_an_administrator_has_changed_stays(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOOTSTRAP_PASSWORD, FIRST)
    call_command("prepare", stdout=StringIO())
    known = User.objects.get(username="admin")
    known.set_password("chosen by the administrator")
    known.save()
    Pool.objects.filter(cluster__name="local").update(slots_per_node=1, memory_bytes=2**30)
    call_command("prepare", stdout=StringIO())
    known.refresh_from_db()
    assert list(Pool.objects.values_list("slots_per_node", "memory_bytes")) == [(1, 2**30)]
    assert known.check_password("chosen by the administrator")


@pytest.mark.django_db
def test_a_store_that_does_not_answer_is_named(settings) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"s3_endpoint": "http://127.0.0.1:1"})
    storage.client.cache_clear()
    try:
        with pytest.raises(CommandError, match=r"has not answered for 0 s: .*object store"):
            call_command("prepare", wait=0.0)
    finally:
        storage.client.cache_clear()


@pytest.mark.django_db(transaction=True)
def test_older_code_does_not_touch_a_newer_database(bucket: str) -> None:
    newer = MigrationRecorder.Migration.objects.create(app="jobs", name="9001_of_next_year")
    try:
        with pytest.raises(SystemCheckError, match=r"does not know jobs\.9001_of_next_year"):
            call_command("prepare", stdout=StringIO())
        assert not User.objects.filter(username="admin").exists()
    finally:
        newer.delete()


@pytest.mark.django_db(transaction=True)
def test_a_program_waits_for_the_migrations_of_its_code() -> None:
    program.await_migrations(0.0)  # all are there
    applied = list(MigrationRecorder.Migration.objects.filter(app="webhooks"))
    MigrationRecorder.Migration.objects.filter(app="webhooks").delete()
    try:
        with pytest.raises(SystemExit, match=rf"{len(applied)} migrations are not applied: run `manage prepare`"):
            program.await_migrations(0.0)
    finally:
        MigrationRecorder.Migration.objects.bulk_create(applied)
