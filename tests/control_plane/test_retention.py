"""Rows that are only needed for a while are removed, and no others; every table has its place in the documentation."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from allauth.usersessions.models import UserSession
from django.apps import apps
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import connection
from django.utils import timezone

from athanor.accounts.models import PlatformRole, SignInTries, User, WorkFailure
from athanor.artifacts.models import PreparationClaim
from athanor.backends.fake.backend import World
from athanor.clusters.models import Cluster, Node, NodeIncident
from athanor.compliance import retention
from athanor.core import ids
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.reconcilers import backlog
from athanor.scheduling import stored_cycles
from athanor.scheduling.models import AdmissionCycle, Simulation, StartEstimate
from athanor.telemetry.models import Heartbeat, Writer
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db
NOW = timezone.now()
PAGE = Path(__file__).resolve().parents[2] / "docs/operations/retention.md"


def ago(**span: float) -> Any:
    return NOW - timedelta(**span)


def set_setting(monkeypatch: pytest.MonkeyPatch, **values: int) -> None:
    monkeypatch.setattr(settings, "ATHANOR", settings.ATHANOR.model_copy(update=values))


@pytest.fixture
def administrator(user: User) -> Api:
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN)
    client = Api()
    client.force_login(User.objects.get(pk=user.pk))
    return client


def test_every_table_is_documented_once() -> None:
    tables = {model._meta.db_table for model in apps.get_models(include_auto_created=True)}
    named = re.findall(r"`([a-z]+_[a-z_]+)`", PAGE.read_text())
    known = [name for name in named if name in tables]
    assert sorted(tables - set(known)) == []
    assert sorted({name for name in known if known.count(name) > 1}) == []


def test_expired_sessions_go_and_current_ones_stay(user: User) -> None:
    for key, expires, created in (("over", ago(minutes=1), ago(days=9)), ("valid", ago(days=-1), ago(days=9))):
        Session.objects.create(session_key=key, session_data="", expire_date=expires)
        UserSession.objects.create(user=user, session_key=key, ip="127.0.0.1", user_agent="x", created_at=created)
    UserSession.objects.create(user=user, session_key="signing-in", ip="127.0.0.1", user_agent="x", created_at=NOW)
    assert retention.sweep() == 2
    assert list(Session.objects.values_list("session_key", flat=True)) == ["valid"]
    assert set(UserSession.objects.values_list("session_key", flat=True)) == {"valid", "signing-in"}


def test_counts_of_failed_sign_ins_go_without_a_successful_one() -> None:
    for key, ends in (("over", ago(seconds=1)), ("open", ago(days=-1))):
        SignInTries.objects.create(key=key, count=9, free_at=NOW, window_ends=ends)
    retention.sweep()
    assert list(SignInTries.objects.values_list("key", flat=True)) == ["open"]


def test_errors_of_work_go_without_another_error() -> None:
    for work, last in (("old", ago(days=8)), ("new", ago(days=6))):
        WorkFailure.objects.create(task="t", work=work, tries=1, first_at=last, last_at=last, next_try_at=last)
    retention.sweep()
    assert list(WorkFailure.objects.values_list("work", flat=True)) == ["new"]


def test_what_only_a_live_attempt_needs_goes_a_week_after_its_end(
    submit: Callable[..., Job], world: World, bucket: str
) -> None:
    attempts = {name: drive.run(submit(name=name)) for name in ("long-over", "just-over", "running")}
    for name, attempt in attempts.items():
        Writer.objects.create(attempt=attempt, kind="metrics", name="rank0")
        PreparationClaim.objects.create(dataset_id=attempt.job.dataset_id, recipe=name, attempt=attempt)
        if name != "running":
            drive.end(world, attempt, EndClass.COMPLETED)
    Attempt.objects.filter(pk=attempts["just-over"].pk).update(ended_at=ago(days=-10))
    retention.sweep(now=ago(days=-6))
    assert Heartbeat.objects.count() == 3
    retention.sweep(now=ago(days=-14))
    for model in (Heartbeat, Writer, PreparationClaim):
        left = set(model._default_manager.values_list("attempt__job__name", flat=True))
        assert left == {"just-over", "running"}, model
    assert JobEvent.objects.filter(job=attempts["long-over"].job).exists()


def cycle(days: float) -> AdmissionCycle:
    return AdmissionCycle.objects.create(
        time=ago(days=days), digest="d", snapshot=b"", decisions=b"", considered=0, seconds=0.1
    )


def test_decisions_go_by_age_and_by_number_and_their_address_says_so(
    administrator: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_cycles, "MAX_CYCLES", 3)
    old, *others = [cycle(days) for days in (31, 29, 3, 2, 1)]
    retention.sweep()
    assert list(AdmissionCycle.objects.order_by("pk")) == others[1:], "the newest three"
    gone = administrator.send("GET", f"admin/decisions/{old.pk}")
    assert (gone.status_code, gone.json()["code"]) == (410, "decision_expired")
    assert "ATHANOR_DECISIONS_DAYS" in gone.json()["remedy"]
    assert administrator.send("GET", f"admin/decisions/{others[-1].pk + 1}").status_code == 404
    set_setting(monkeypatch, decisions_days=0)
    kept = cycle(4000)
    retention.sweep()
    assert AdmissionCycle.objects.filter(pk=kept.pk).exists(), "0: for ever"


def test_history_goes_after_its_days_unless_it_is_stored_for_ever(
    administrator: Api, user: User, team: Any, submit: Callable[..., Job], world: World, bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    node = Node.objects.create(cluster=Cluster.objects.get(), name="n1")
    ended, waiting = submit(name="ended"), submit(name="waiting")
    Job.objects.filter(pk=ended.pk).update(finished_at=ago(days=300))
    for days in (400, 300):
        NodeIncident.objects.create(node=node, kind="down", time=ago(days=days))
        sim = ids.earliest_id("sim", ago(days=days))
        Simulation.objects.create(id=sim, created_by=user, request={}, ended_at=ago(days=days))
        for job in (ended, waiting):
            StartEstimate.objects.create(
                job=job, team=team, made_at=ago(days=days), p50_at=NOW, p90_at=NOW, raw_p50_seconds=1, raw_p90_seconds=1
            )
    unfinished = Simulation.objects.create(created_by=user, request={}, created_at=ago(days=500))
    set_setting(monkeypatch, history_days=0)
    assert retention.sweep() == 0
    set_setting(monkeypatch, history_days=365)
    assert retention.sweep() == 3
    assert NodeIncident.objects.get().time == ago(days=300)
    assert Simulation.objects.filter(pk=unfinished.pk).exists()
    assert StartEstimate.objects.filter(job=ended).count() == 1
    assert StartEstimate.objects.filter(job=waiting).count() == 2
    gone = administrator.send("GET", f"simulations/{ids.earliest_id('sim', ago(days=400))}")
    assert (gone.status_code, gone.json()["code"]) == (410, "simulation_expired")
    assert administrator.send("GET", f"simulations/{ids.simulation_id()}").status_code == 404


def test_it_works_in_small_transactions_and_stops_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ROWS", 10)
    rows = [Session(session_key=f"s{number}", session_data="", expire_date=ago(days=1)) for number in range(35)]
    Session.objects.bulk_create(rows)
    ticks = iter([0.0, 1.0, 2.0, *[100.0] * 50])
    assert retention.sweep(30.0, clock=lambda: next(ticks)) == 20
    state = next(each for each in backlog.states() if each.reconciler.task == "athanor.sweep_records")
    assert state.rows_due == 15
    assert retention.sweep() == 15


def test_no_query_reads_a_table_that_grows_to_its_end() -> None:
    """Planner's choice without the alternative of a scan: each rule has an index for its condition."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for rule in retention.overdue():
            table = rule.rows.model._meta.db_table
            plan = rule.rows.order_by(rule.since)[:10].explain()
            if table != "usersessions_usersession":  # as many as there are sessions
                assert f"Seq Scan on {table}" not in plan, plan
