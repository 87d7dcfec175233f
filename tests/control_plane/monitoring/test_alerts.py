"""Every alert fires on a fault that is planted in the platform, and all are quiet without one.

What a scrape serves before and after the fault becomes the input of promtool: gauges stay as they are, and counters
grow each minute by as much as the fault has made them grow.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.db import OperationalError
from django.db.models import F
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from athanor.accounts.models import WorkFailure
from athanor.api import middleware
from athanor.api.v1.jobs import JobsView
from athanor.artifacts import storage
from athanor.backends.fake.backend import World
from athanor.budgets.models import Budget, BudgetPeriod, UsageHour, UsagePart
from athanor.clusters.models import Cluster, ClusterHealthCheck, Node
from athanor.core import metrics, task_triggers
from athanor.core.errors import Unavailable
from athanor.core.valkey import valkey
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.monitoring import exposition, state
from athanor.quotas.models import QuotaNode
from athanor.reconcilers import backlog
from athanor.telemetry import ingest
from athanor.telemetry.models import Progress
from athanor.webhooks.models import Delivery, Webhook
from deploy.monitoring.__main__ import EXAMPLE_URL, HERE, files
from deploy.monitoring.alerts import ALERTS
from deploy.monitoring.dashboards import DASHBOARDS
from deploy.reference.metrics import metrics_page
from tests.control_plane import drive
from trainer.contract.run import Batch, EndClass, MetricPoint
from trainer.contract.system import SystemSample

pytestmark = pytest.mark.django_db
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
QUIET_MINUTES, FAULT_MINUTES = 150, 100
LONG_AGO = timedelta(days=2)
Key = tuple[str, frozenset[tuple[str, str]]]
NAMES = re.compile(r"\b(?:athanor_[a-z_]+|up)\b")


class Installation:
    """A healthy installation with a running job, and the faults that can be planted in it."""

    def __init__(self, job: Job, attempt: Attempt, world: World, patch: pytest.MonkeyPatch, commits: Any) -> None:
        self.job, self.attempt, self.world, self.patch, self.commits = job, attempt, world, patch, commits
        self.is_up = True
        now = timezone.now()
        cluster = job.pool.cluster
        Attempt.objects.filter(pk=attempt.pk).update(native_nodes=["n0"])
        attempt.refresh_from_db()
        for number in range(5):
            Node.objects.create(cluster=cluster, name=f"n{number}", state="ready", listed=True)
        ClusterHealthCheck.objects.create(cluster=cluster, began_at=now, seen_at=now, usable=True)
        self.budget = Budget.objects.create(
            node=QuotaNode.objects.get(team=job.team), name="b", unit="slot_hours", period="month", amount=3600
        )
        self.hook = Webhook.objects.create(team=job.team, url="https://example.org/", position=0)
        values = {"throughput/tokens_per_second": 1000.0, "throughput/mfu_causal": 0.4}
        self._send("metrics", points=[MetricPoint(time=now, step=7, generation=0, values={**values})])
        self._send("system", samples=[self._sample(0.0, 0.0, 0.5)])
        for each in backlog.RECONCILERS:
            with backlog.recorded(each.task):
                pass
        JobEvent.objects.update(team_seq=F("id"))
        self.api = Client()
        self.api.force_login(job.created_by)

    def _send(self, kind: str, sequence: int = 0, **items: Any) -> None:
        with self.commits(execute=True):
            ingest.ingest(self.attempt, kind, Batch(writer=kind, sequence=sequence, **items))

    @staticmethod
    def _sample(throttled: float, ecc: float, disk: float) -> SystemSample:
        values: dict[str, list[float | None]] = {
            "system/gpu_throttled": [0.0, throttled],
            "system/gpu_ecc_uncorrected": [0.0, ecc],
            "system/disk_used": [disk],
        }
        return SystemSample(time=timezone.now(), node="n0", values=values)

    def scrape(self) -> dict[Key, tuple[float, bool]]:
        """Return the samples, with whether each is of a counter or a histogram."""
        if not self.is_up:
            return {}
        text = exposition.render().decode()
        return {
            (sample.name, frozenset(sample.labels.items())): (sample.value, family.type != "gauge")
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    # The faults, by the alert that each fires.

    def down(self) -> None:
        self.is_up = False

    def database_unavailable(self) -> None:
        def fail() -> Iterator[state.Sample]:
            raise OperationalError("gone")

        self.patch.setattr(state, "read", fail)

    def request_errors(self) -> None:
        def fail(*_: Any) -> None:
            raise OperationalError("gone")

        self.patch.setattr(JobsView, "get", fail)
        assert self.api.get("/api/v1/jobs").status_code == 503

    def requests_slow(self) -> None:
        class Clock:
            seconds = 0.0

            def monotonic(self) -> float:
                self.seconds += 4.0
                return self.seconds

        self.patch.setattr(middleware, "time", Clock())
        assert self.api.get("/api/v1/jobs").status_code == 200

    def reconciler_late(self) -> None:
        task = task_triggers.OBSERVE
        run = {"task": task, "ran_at": (timezone.now() - LONG_AGO).isoformat(), "seconds": 0.1}
        valkey().hset(backlog.RUNS_KEY, task, json.dumps(run))

    def reconciler_errors(self) -> None:
        with pytest.raises(ZeroDivisionError), backlog.recorded(task_triggers.OBSERVE):
            raise ZeroDivisionError

    def reconciler_behind(self) -> None:
        JobEvent.objects.filter(job=self.job).update(team_seq=None, time=timezone.now() - LONG_AGO)

    def work_given_up(self) -> None:
        now = timezone.now()
        WorkFailure.objects.create(
            task=task_triggers.METER,
            work="a row",
            tries=12,
            first_at=now,
            last_at=now,
            next_try_at=now,
            given_up_at=now,
        )

    def admission_slow(self) -> None:
        metrics.ADMISSION_CYCLE_SECONDS.observe(8.0)

    def object_store_errors(self) -> None:
        self.patch.setattr(storage, "bucket", lambda: "no-such-bucket-at-all")
        with pytest.raises(Unavailable):
            storage.put("anything", b"x")

    def sign_in_failures(self) -> None:
        for name in range(6):
            body = {"username": f"mallory-{name}", "password": "wrong"}
            Client(REMOTE_ADDR=f"192.0.2.{name}").post("/api/v1/session", body, content_type="application/json")

    def webhooks_behind(self) -> None:
        delivery = Delivery.objects.create(
            team=self.job.team, webhook=self.hook, event_type="job.status", body="{}", gives_up_at=timezone.now()
        )
        Delivery.objects.filter(pk=delivery.pk).update(created_at=timezone.now() - LONG_AGO)

    def cluster_unusable(self) -> None:
        ClusterHealthCheck.objects.update(usable=False)

    def cluster_not_observed(self) -> None:
        Cluster.objects.update(observed_at=timezone.now() - LONG_AGO)

    def nodes_down(self) -> None:
        Node.objects.filter(name="n4").update(state="down")

    def infrastructure_faults(self) -> None:
        with self.commits(execute=True):
            drive.end(self.world, self.attempt, EndClass.GPU_FAULT)

    def queue_stuck(self) -> None:
        other = Job.objects.get(name="waits")
        Job.objects.filter(pk=other.pk).update(queued_at=timezone.now() - LONG_AGO, reason="waiting_for_capacity")

    def job_silent(self) -> None:
        Progress.objects.update(updated_at=timezone.now() - LONG_AGO)

    def job_slower(self) -> None:
        values = {"throughput/tokens_per_second": 500.0}
        self._send("metrics", 1, points=[MetricPoint(time=timezone.now(), step=8, generation=0, values={**values})])

    def gpu_throttled(self) -> None:
        self._send("system", 1, samples=[self._sample(1.0, 0.0, 0.5)])

    def gpu_memory_errors(self) -> None:
        self._send("system", 1, samples=[self._sample(0.0, 2.0, 0.5)])

    def node_disk_full(self) -> None:
        self._send("system", 1, samples=[self._sample(0.0, 0.0, 0.99)])

    def budget_nearly_spent(self) -> None:
        now = timezone.now()
        start, end = now - timedelta(days=1), now + timedelta(days=1)
        BudgetPeriod.objects.create(budget=self.budget, start=start, end=end, allowance=600, reserved=1200, spent=1800)

    def goodput_low(self) -> None:
        hour = UsageHour.objects.create(
            team=self.job.team, project="p", pool=self.job.pool, accelerator="cpu", job=self.job,
            hour=timezone.now().replace(minute=0, second=0, microsecond=0), slot_seconds=200_000,
        )  # fmt: skip
        for activity, seconds in (("training", 50_000), ("lost", 150_000)):
            UsagePart.objects.create(usage=hour, team=self.job.team, activity=activity, slot_seconds=seconds, cost=0)


def fault_of(alert: str) -> str:
    """Return the method that plants the fault of an alert."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", alert.removeprefix("Athanor")).lower()


@pytest.fixture
def installation(
    submit: Callable[..., Job], world: World, bucket: str, monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> Iterator[Installation]:  # fmt: skip
    monkeypatch.setattr(exposition, "FRESH_SECONDS", 0.0)
    exposition._state._read_at = float("-inf")
    valkey().delete(backlog.RUNS_KEY)
    job = submit()
    attempt = drive.run(job)
    job.refresh_from_db()
    submit(name="waits", resources={"processes_per_node": 8, "cluster": "fake"})
    yield Installation(job, attempt, world, monkeypatch, django_capture_on_commit_callbacks)
    valkey().delete(backlog.RUNS_KEY)


def series(before: dict[Key, tuple[float, bool]], after: dict[Key, tuple[float, bool]]) -> list[dict[str, str]]:
    """Return promtool's series: what was scraped before the fault, then what is scraped while it lasts."""
    wanted = {name for alert in ALERTS for name in NAMES.findall(alert.expr)}
    found = []
    for key in sorted(before.keys() | after.keys(), key=str):
        name, labels = key
        if name not in wanted:
            continue
        (old, grows), (new, _) = before.get(key, (0.0, after.get(key, (0.0, False))[1])), after.get(key, (0.0, False))
        quiet = f"{old}+0x{QUIET_MINUTES - 1}" if key in before else f"_x{QUIET_MINUTES}"
        growth = new - old if grows else 0.0
        fault = f"{new}+{growth}x{FAULT_MINUTES - 1}" if key in after else f"_x{FAULT_MINUTES}"
        text = ",".join(f"{label}={json.dumps(value)}" for label, value in sorted(labels))
        found.append({"series": f"{name}{{{text}}}", "values": f"{quiet} {fault}"})
    return found


def run_promtool(folder: Path, unit: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (folder / "rules.yaml").write_text(files(EXAMPLE_URL)["athanor.rules.yaml"])
    (folder / "unit.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [unit]})
    )
    return subprocess.run(
        ["promtool", "test", "rules", "unit.yaml"], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


HAS_FIRED = 'group by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{minutes}m]))'


@needs_promtool
@pytest.mark.parametrize("alert", [alert.name for alert in ALERTS])
def test_it_fires_on_its_fault_and_nothing_fires_without(
    installation: Installation, alert: str, tmp_path: Path
) -> None:
    before = installation.scrape()
    getattr(installation, fault_of(alert))()
    after = installation.scrape()
    up = f"1+0x{QUIET_MINUTES - 1} {int(installation.is_up)}+0x{FAULT_MINUTES - 1}"
    unit = {
        "interval": "1m",
        "input_series": [*series(before, after), {"series": 'up{job="athanor",instance="web"}', "values": up}],
        "promql_expr_test": [
            {
                "expr": HAS_FIRED.format(minutes=QUIET_MINUTES),
                "eval_time": f"{QUIET_MINUTES - 1}m",
                "exp_samples": [],
            },
            {
                "expr": HAS_FIRED.format(minutes=FAULT_MINUTES),
                "eval_time": f"{QUIET_MINUTES + FAULT_MINUTES - 1}m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}],
            },
        ],
    }
    result = run_promtool(tmp_path, unit)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_files_are_current() -> None:
    for name, text in files(EXAMPLE_URL).items():
        assert (HERE / name).read_text(encoding="utf-8") == text, "run `make gen`"


@needs_promtool
def test_the_expressions_of_dashboards_are_of_metrics_that_exist(tmp_path: Path) -> None:
    known = set(re.findall(r"`(athanor_[a-z_]+)`", metrics_page()))
    rules = []
    for board in DASHBOARDS:
        for panel in board.panels:
            for expr in panel.queries.values():
                names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in NAMES.findall(expr)}
                assert names and names <= known, (board.name, panel.title, names - known)
                rules.append({"record": f"panel:number:{len(rules)}", "expr": re.sub(r"\$\w+", "x", expr)})
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    result = subprocess.run(
        ["promtool", "check", "rules", path], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    for name, text in files(EXAMPLE_URL).items():
        if not name.endswith(".json"):
            continue
        panels = json.loads(text)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in panels)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(x for x, _ in cells) < 24
