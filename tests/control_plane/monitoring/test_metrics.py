"""GET /metrics: what it says agrees with the records, in a format that Prometheus reads, for the holder of a token."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from athanor.accounts.models import Team, User
from athanor.artifacts import storage
from athanor.backends.fake.backend import World
from athanor.budgets.models import Budget
from athanor.clusters.models import Cluster, ClusterHealthCheck, Node, Pool
from athanor.config.env import EnvironmentProblem, read
from athanor.core.errors import Unavailable
from athanor.jobs.models import Attempt, Job
from athanor.monitoring import exposition, state
from athanor.quotas.models import QuotaNode
from athanor.reconcilers import backlog
from athanor.telemetry import ingest
from athanor.webhooks.models import Delivery, Webhook
from tests.control_plane import drive
from trainer.contract.run import Batch, EndClass, LogLine, MetricPoint
from trainer.contract.system import SystemSample

pytestmark = pytest.mark.django_db
TOKEN = "scrape-token-of-the-tests"
Labels = dict[str, str]


class Scrape:
    """The samples of a response of /metrics."""

    def __init__(self, text: str) -> None:
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, /, **labels: str) -> float | None:
        return self.samples.get((f"athanor_{name}", frozenset(labels.items())))

    def labels_of(self, name: str) -> list[Labels]:
        return [dict(labels) for found, labels in self.samples if found == f"athanor_{name}"]


@pytest.fixture(autouse=True)
def with_token(settings: Any) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"metrics_token": TOKEN})


@pytest.fixture
def scrape(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Scrape]:
    """Return a function that requests /metrics. The state is read each time."""
    monkeypatch.setattr(exposition, "FRESH_SECONDS", 0.0)

    def get() -> Scrape:
        answer = Client().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200, answer.content
        return Scrape(answer.content.decode())

    return get


def test_only_the_token_opens_it_and_it_is_off_without(settings: Any, submit: Callable[..., Job]) -> None:
    submit()
    for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        answer = Client().get("/metrics", headers=header)
        assert (answer.status_code, answer.json()["code"]) == (401, "metrics_token")
        assert b"athanor_jobs" not in answer.content
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"metrics_token": ""})
    answer = Client().get("/metrics", headers={"Authorization": "Bearer "})
    assert (answer.status_code, answer.json()["code"]) == (404, "metrics_off")


def test_a_session_of_an_administrator_is_no_token(user: User) -> None:
    client = Client()
    client.force_login(user)
    assert client.get("/metrics").status_code == 401


def test_a_short_token_is_refused() -> None:
    with pytest.raises(EnvironmentProblem, match="ATHANOR_METRICS_TOKEN: .*at least 16 characters"):
        read({"ATHANOR_METRICS_TOKEN": "short"})


def test_the_queue_is_counted_by_team_and_reason(
    scrape: Callable[[], Scrape], submit: Callable[..., Job], team: Team
) -> None:
    running = submit(resources={"processes_per_node": 8, "cluster": "fake"})
    drive.run(running)
    submit(resources={"processes_per_node": 4, "cluster": "fake"})
    from athanor.scheduling import services as scheduling

    scheduling.admit()
    found = scrape()
    waiting = {"team": team.name, "cluster": "fake", "pool": "cpu", "reason": "no_free_slots"}
    reasons = found.labels_of("queue_jobs")
    assert len(reasons) == 1, reasons
    waiting["reason"] = reasons[0]["reason"]
    assert waiting["reason"] == Job.objects.get(status="queued").reason != ""
    assert found.value("queue_jobs", **waiting) == 1
    assert found.value("queue_slots", **waiting) == 4
    assert found.value("queue_oldest_seconds", **waiting) is not None
    assert found.value("jobs", team=team.name, status="running") == 1
    assert found.value("attempts", cluster="fake", status="running") == 1
    pool = {"cluster": "fake", "pool": "cpu", "accelerator": "cpu"}
    assert (found.value("pool_slots", **pool), found.value("pool_slots_used", **pool)) == (8, 8)


def test_an_ended_attempt_is_counted_by_its_reason_and_its_job_has_no_series(
    scrape: Callable[[], Scrape], submit: Callable[..., Job], world: World, bucket: str,
    django_capture_on_commit_callbacks: Any,
) -> None:  # fmt: skip
    job = submit()
    attempt = drive.run(job)
    before = scrape()
    reason = {"cluster": "fake", "reason": "completed"}
    assert before.labels_of("job_last_report_age_seconds") == [{"team": "red", "job_id": job.id, "name": job.name}]
    with django_capture_on_commit_callbacks(execute=True):
        drive.end(world, attempt, EndClass.COMPLETED)
    job.refresh_from_db()
    after = scrape()
    assert after.value("attempts_ended_total", **reason) == (before.value("attempts_ended_total", **reason) or 0) + 1
    assert after.labels_of("job_last_report_age_seconds") == []
    assert after.labels_of("jobs") == []


def test_progress_and_nodes_are_those_that_agents_sent(
    scrape: Callable[[], Scrape], submit: Callable[..., Job], django_capture_on_commit_callbacks: Any
) -> None:
    job = submit()
    attempt = drive.run(job)
    Attempt.objects.filter(pk=attempt.pk).update(native_nodes=["n0"])
    attempt.refresh_from_db()
    now = timezone.now()
    values = {"throughput/tokens_per_second": 1234.5, "throughput/mfu_causal": 0.41, "time/step_seconds": 0.5}
    point = MetricPoint(time=now, step=7, generation=0, values={**values, "train/loss": 2.25})
    sample = SystemSample(
        time=now, node="n0", values={"system/gpu_temperature": [61.0, None, 63.0], "system/memory_used": [0.25]}
    )
    line = LogLine(time=now, rank=0, stream="stdout", text="hello")
    with django_capture_on_commit_callbacks(execute=True):
        ingest.ingest(attempt, "metrics", Batch(writer="rank0", sequence=0, points=[point]))
        ingest.ingest(attempt, "system", Batch(writer="agent0", sequence=0, samples=[sample]))
        ingest.ingest(attempt, "logs", Batch(writer="agent0", sequence=0, lines=[line, line]))
    found = scrape()
    of_job = {"team": "red", "job_id": job.id, "name": job.name}
    assert found.value("job_tokens_per_second", **of_job) == 1234.5
    assert found.value("job_mfu_ratio", **of_job) == 0.41
    assert found.value("job_step", **of_job) == 7
    of_node = {"cluster": "fake", "node": "n0", "job_id": job.id}
    assert found.value("node_gpu_temperature_celsius", **of_node, gpu="0") == 61.0
    assert found.value("node_gpu_temperature_celsius", **of_node, gpu="1") is None
    assert found.value("node_gpu_temperature_celsius", **of_node, gpu="2") == 63.0
    assert found.value("node_memory_used_ratio", **of_node) == 0.25
    assert (found.value("telemetry_items_total", kind="logs") or 0) >= 2


def test_an_old_sample_says_nothing_about_now(scrape: Callable[[], Scrape], submit: Callable[..., Job]) -> None:
    attempt = drive.run(submit())
    Attempt.objects.filter(pk=attempt.pk).update(native_nodes=["n0"], created_at=timezone.now() - timedelta(hours=1))
    attempt.refresh_from_db()
    long_ago = timezone.now() - state.STALE_AFTER - timedelta(minutes=1)
    sample = SystemSample(time=long_ago, node="n0", values={"system/memory_used": [0.25]})
    ingest.ingest(attempt, "system", Batch(writer="agent0", sequence=0, samples=[sample]))
    assert scrape().labels_of("node_memory_used_ratio") == []


def test_clusters_and_nodes(scrape: Callable[[], Scrape], world: World) -> None:
    cluster = Cluster.objects.get(name="fake")
    now = timezone.now()
    findings = [{"check": "access", "level": "error", "detail": "refused", "remedy": "renew the key"}]
    ClusterHealthCheck.objects.create(cluster=cluster, began_at=now, seen_at=now, usable=False, findings=findings)
    for number, node_state in enumerate(("ready", "ready", "down")):
        Node.objects.create(cluster=cluster, name=f"n{number}", state=node_state, listed=True)
    Node.objects.filter(name="n1").update(quarantined_at=now)
    found = scrape()
    assert found.value("cluster_usable", cluster="fake") == 0
    assert found.value("cluster_findings", cluster="fake", level="error") == 1
    assert found.value("cluster_findings", cluster="fake", level="warning") == 0
    assert found.value("nodes", cluster="fake", state="ready") == 2
    assert found.value("nodes", cluster="fake", state="down") == 1
    assert found.value("nodes_quarantined", cluster="fake") == 1


def test_webhooks_and_budgets(scrape: Callable[[], Scrape], team: Team, user: User) -> None:
    hook = Webhook.objects.create(team=team, url="https://example.org/", position=0, created_by=user)
    Delivery.objects.create(
        team=team, webhook=hook, event_type="job.status", body="{}", gives_up_at=timezone.now() + timedelta(days=1)
    )
    Budget.objects.create(
        node=QuotaNode.objects.get(team=team), name="monthly", unit="money", currency="EUR", period="month",
        amount=2_500_000_000,
    )  # fmt: skip
    found = scrape()
    assert found.value("webhook_deliveries_pending", team="red") == 1
    budget = found.labels_of("budget_amount")[0]
    assert (budget["budget"], budget["unit"]) == ("monthly", "EUR")
    assert budget["node"].endswith("/red")
    assert found.value("budget_amount", **budget) == 2500.0
    assert found.value("budget_spent", **budget) == 0
    assert found.value("budget_soft_ratio", **budget) == 0.8


def test_reconcilers_are_all_there_with_their_errors(scrape: Callable[[], Scrape], db: None) -> None:
    before = scrape()
    task = backlog.RECONCILERS[0].task
    with backlog.recorded(task):
        pass
    with pytest.raises(ZeroDivisionError), backlog.recorded(task):
        raise ZeroDivisionError
    found = scrape()
    assert {labels["task"] for labels in found.labels_of("reconciler_lag_seconds")} == {
        each.task for each in backlog.RECONCILERS
    }
    for name in ("reconciler_errors_total", "reconciler_run_seconds_count"):
        assert found.value(name, task=task) == (before.value(name, task=task) or 0) + 1


def test_requests_are_measured_by_route_and_not_by_address(scrape: Callable[[], Scrape], api: Any) -> None:
    api.send("GET", "jobs/job_1")
    api.send("GET", "jobs/job_2")
    Client().get("/nothing/here")
    Client().generic("BREW", "/healthz")
    found = scrape().labels_of("http_request_seconds_count")
    assert {"method": "GET", "route": "api/v1/jobs/<id:job_id>", "status": "4xx"} in found, found
    assert {"method": "GET", "route": "other", "status": "4xx"} in found
    assert not [labels for labels in found if "job_1" in labels["route"] or labels["method"] == "BREW"]


def test_wrong_passwords_and_errors_of_the_store_are_counted(
    scrape: Callable[[], Scrape], settings: Any, db: None
) -> None:
    before = scrape()
    body = {"username": "mallory", "password": "wrong"}
    Client().post("/api/v1/session", body, content_type="application/json")
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"s3_bucket": "no-such-bucket-at-all"})
    with pytest.raises(Unavailable):
        storage.put("anything", b"x")
    after = scrape()
    assert after.value("sign_in_failures_total", step="password") == (
        (before.value("sign_in_failures_total", step="password") or 0) + 1
    )
    assert after.value("object_store_errors_total", code="NoSuchBucket") == (
        (before.value("object_store_errors_total", code="NoSuchBucket") or 0) + 1
    )


def test_without_a_database_the_processes_are_still_scraped(
    scrape: Callable[[], Scrape], monkeypatch: pytest.MonkeyPatch, db: None
) -> None:
    assert scrape().value("state_up") == 1

    def fail() -> Iterator[None]:
        raise DatabaseError("gone")

    monkeypatch.setattr(state, "read", fail)
    found = scrape()
    assert found.value("state_up") == 0
    assert found.labels_of("jobs") == []
    assert found.labels_of("http_request_seconds_count") != []


def test_the_state_is_read_with_the_same_number_of_queries_for_any_number_of_jobs(
    submit: Callable[..., Job], pool: Pool
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    def count() -> int:
        with CaptureQueriesContext(connection) as captured:
            list(state.read())
        return len(captured)

    drive.run(submit())
    before = count()
    for number in range(5):
        drive.run(submit(name=f"more-{number}"))
    assert count() == before


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_finds_nothing_to_correct(scrape: Callable[[], Scrape], submit: Callable[..., Job]) -> None:
    drive.run(submit())
    answer = Client().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=answer.content, capture_output=True, check=False, timeout=60
    )
    assert checked.returncode == 0, checked.stdout.decode() + checked.stderr.decode()


COUNT = """
import sys, django
django.setup()
from athanor.core.metrics import TELEMETRY_ITEMS
from athanor.monitoring import exposition
TELEMETRY_ITEMS.labels("metrics").inc(int(sys.argv[1]))
if sys.argv[1] == "0":
    from prometheus_client import generate_latest
    print(generate_latest(exposition._of_processes()).decode())
"""


def test_processes_that_share_a_folder_are_summed(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "athanor.config.settings",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
    }
    for amount in ("3", "4", "0"):
        done = subprocess.run(
            [sys.executable, "-c", COUNT, amount], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert Scrape(done.stdout).value("telemetry_items_total", kind="metrics") == 7
