"""Dashboards for Grafana, one for each reader: platform, cluster, job and team."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from deploy.monitoring.alerts import OWN_HEALTH

Json = dict[str, object]
SCHEMA_VERSION = 39  # of the JSON model of dashboards, Grafana 11
WIDTH, HEIGHT = 12, 8  # of a panel, on a grid of 24 columns
PANELS_PER_ROW = 24 // WIDTH
OF_TEAM = '{node=~"(.*/)?$team"}'  # its node in the quota tree
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """A chart, or a table of the newest values. `queries`: expressions by legend. `unit`: of Grafana's."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: Literal["timeseries", "table"] = "timeseries"


@dataclass(frozen=True)
class Dashboard:
    """A dashboard. `variables`: the label values that a reader chooses, each with the metric that has them."""

    name: str
    title: str
    panels: Sequence[Panel]
    variables: Sequence[tuple[str, str]] = ()


PLATFORM = Dashboard(
    "platform", "Athanor: platform",
    (
        Panel("Requests per second", {
            "{{status}}": f"sum by (status) (rate(athanor_http_request_seconds_count{{{OWN_HEALTH}}}[5m]))",
        }, "reqps"),
        Panel("Time to a response", {
            f"p{share}": f"histogram_quantile(0.{share}, sum by (le)"
            f" (rate(athanor_http_request_seconds_bucket{{{OWN_HEALTH}}}[5m])))" for share in (50, 95, 99)
        }, "s"),
        Panel("Slowest routes (p95)", {
            "{{method}} {{route}}": "topk(10, histogram_quantile(0.95, sum by (le, method, route)"
            f" (rate(athanor_http_request_seconds_bucket{{{OWN_HEALTH}}}[5m]))))",
        }, "s"),
        Panel("Jobs by status", {"{{status}}": "sum by (status) (max by (team, status) (athanor_jobs))"}),
        Panel("Queued jobs by reason", {
            "{{reason}}": "sum by (reason) (max by (team, cluster, pool, reason) (athanor_queue_jobs))",
        }),
        Panel("Longest wait in the queue", {
            "{{team}}": "max by (team) (athanor_queue_oldest_seconds)",
        }, "s"),
        Panel("Lag of reconcilers", {"{{task}}": "max by (task) (athanor_reconciler_lag_seconds)"}, "s"),
        Panel("Duration of reconciler runs (p95)", {
            "{{task}}": "histogram_quantile(0.95, sum by (le, task) (rate(athanor_reconciler_run_seconds_bucket[5m])))",
        }, "s"),
        Panel("Errors of reconcilers", {
            "{{task}}": "sum by (task) (rate(athanor_reconciler_errors_total[5m]))",
        }, "ops"),
        Panel("Admission cycle (p95)", {
            "p95": "histogram_quantile(0.95, sum by (le) (rate(athanor_admission_cycle_seconds_bucket[5m])))",
        }, "s"),
        Panel("Telemetry stored per second", {
            "{{kind}}": "sum by (kind) (rate(athanor_telemetry_items_total[5m]))",
        }, "ops"),
        Panel("Object store errors", {
            "{{code}}": "sum by (code) (rate(athanor_object_store_errors_total[5m]))",
        }, "ops"),
        Panel("Tries to deliver to webhooks", {
            "{{outcome}}": "sum by (outcome) (rate(athanor_webhook_tries_total[5m]))",
        }, "ops"),
        Panel("Refused sign-ins", {
            "{{step}}": "sum by (step) (rate(athanor_sign_in_failures_total[5m]))",
        }, "ops"),
    ),
)  # fmt: skip

CLUSTER = Dashboard(
    "cluster", "Athanor: cluster",
    (
        Panel("Slots", {
            "{{pool}} in use": 'max by (pool) (athanor_pool_slots_used{cluster="$cluster"})',
            "{{pool}} in total": 'max by (pool) (athanor_pool_slots{cluster="$cluster"})',
        }),
        Panel("Queued slots", {
            "{{pool}} {{reason}}":
                'sum by (pool, reason) (max by (team, pool, reason) (athanor_queue_slots{cluster="$cluster"}))',
        }),
        Panel("Attempts by status", {"{{status}}": 'max by (status) (athanor_attempts{cluster="$cluster"})'}),
        Panel("Ended attempts per hour, by reason", {
            "{{reason}}": 'sum by (reason) (increase(athanor_attempts_ended_total{cluster="$cluster"}[1h]))',
        }),
        Panel("Nodes by state", {
            "{{state}}": 'max by (state) (athanor_nodes{cluster="$cluster"})',
            "quarantined": 'max(athanor_nodes_quarantined{cluster="$cluster"})',
        }),
        Panel("Findings of the health check", {
            "{{level}}": 'max by (level) (athanor_cluster_findings{cluster="$cluster"})',
        }),
        Panel("Hottest GPUs", {
            "{{node}} GPU {{gpu}}":
                'topk(10, max by (node, gpu) (athanor_node_gpu_temperature_celsius{cluster="$cluster"}))',
        }, "celsius"),
        Panel("GPU power", {
            "all GPUs with jobs": 'sum(max by (node, gpu) (athanor_node_gpu_power_watts{cluster="$cluster"}))',
        }, "watt"),
        Panel("GPUs that are slowed down", {
            "{{node}} GPU {{gpu}}": 'max by (node, gpu) (athanor_node_gpu_throttled_ratio{cluster="$cluster"}) > 0',
        }, "percentunit", "table"),
        Panel("Uncorrected memory errors", {
            "{{node}} GPU {{gpu}}": 'max by (node, gpu) (athanor_node_gpu_ecc_uncorrected{cluster="$cluster"}) > 0',
        }, "short", "table"),
    ),
    (("cluster", "athanor_pool_slots"),),
)  # fmt: skip

JOB = Dashboard(
    "job", "Athanor: job",
    (
        Panel("Tokens per second", {"tokens/s": 'max(athanor_job_tokens_per_second{job_id="$job_id"})'}),
        Panel("MFU", {"MFU": 'max(athanor_job_mfu_ratio{job_id="$job_id"})'}, "percentunit"),
        Panel("Training loss", {"loss": 'max(athanor_job_loss{job_id="$job_id"})'}),
        Panel("Step time", {"step": 'max(athanor_job_step_seconds{job_id="$job_id"})'}, "s"),
        Panel("Step", {"step": 'max(athanor_job_step{job_id="$job_id"})'}),
        Panel("Time since the last report", {"age": 'max(athanor_job_last_report_age_seconds{job_id="$job_id"})'}, "s"),
        Panel("GPU utilisation, by node", {
            "{{node}}": 'avg by (node) (max by (node, gpu) (athanor_node_gpu_utilisation_ratio{job_id="$job_id"}))',
        }, "percentunit"),
        Panel("GPU memory, by node", {
            "{{node}}": 'max by (node) (athanor_node_gpu_memory_used_ratio{job_id="$job_id"})',
        }, "percentunit"),
        Panel("Hottest GPU, by node", {
            "{{node}}": 'max by (node) (athanor_node_gpu_temperature_celsius{job_id="$job_id"})',
        }, "celsius"),
        Panel("CPU in use, by node", {
            "{{node}}": 'max by (node) (athanor_node_cpu_utilisation_ratio{job_id="$job_id"})',
        }, "percentunit"),
        Panel("Host memory, by node", {
            "{{node}}": 'max by (node) (athanor_node_memory_used_ratio{job_id="$job_id"})',
        }, "percentunit"),
        Panel("Work disk, by node", {
            "{{node}}": 'max by (node) (athanor_node_disk_used_ratio{job_id="$job_id"})',
        }, "percentunit"),
    ),
    (("job_id", "athanor_job_last_report_age_seconds"),),
)  # fmt: skip

TEAM = Dashboard(
    "team", "Athanor: team",
    (
        Panel("Goodput of the last 24 hours", {"goodput": 'max(athanor_goodput_ratio{team="$team"})'}, "percentunit"),
        Panel("Slot-hours of the last 24 hours, by activity", {
            "{{activity}}": 'max by (activity) (athanor_usage_slot_hours{team="$team"})',
        }),
        Panel("Jobs by status", {"{{status}}": 'max by (status) (athanor_jobs{team="$team"})'}),
        Panel("Queued slots by reason", {
            "{{cluster}}/{{pool}} {{reason}}":
                'max by (cluster, pool, reason) (athanor_queue_slots{team="$team"})',
        }),
        Panel("MFU of running jobs", {
            "{{name}}": 'max by (name, job_id) (athanor_job_mfu_ratio{team="$team"})',
        }, "percentunit"),
        Panel("Tokens per second of running jobs", {
            "{{name}}": 'max by (name, job_id) (athanor_job_tokens_per_second{team="$team"})',
        }),
        Panel("Own budgets: share that is spent or reserved", {
            "{{budget}} of {{node}}":
                f"max by (node, budget) (athanor_budget_spent{OF_TEAM} + athanor_budget_reserved{OF_TEAM})"
                f" / max by (node, budget) (athanor_budget_amount{OF_TEAM})",
        }, "percentunit"),
        Panel("Pending deliveries to webhooks", {
            "pending": 'max(athanor_webhook_deliveries_pending{team="$team"})',
        }),
    ),
    (("team", "athanor_jobs"),),
)  # fmt: skip

DASHBOARDS = (PLATFORM, CLUSTER, JOB, TEAM)


def document(dashboard: Dashboard) -> Json:
    """Return the dashboard in Grafana's JSON model, for an import or for provisioning."""
    variables: list[Json] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        *(_variable(label, metric) for label, metric in dashboard.variables),
    ]
    return {
        "uid": f"athanor-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["athanor"],
        "editable": True,
        "schemaVersion": SCHEMA_VERSION,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "links": [
            {"type": "dashboards", "tags": ["athanor"], "title": "Athanor", "asDropdown": True, "includeVars": True}
        ],
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }


def _variable(label: str, metric: str) -> Json:
    query = f"label_values({metric}, {label})"
    return {
        "name": label, "label": label.removesuffix("_id").capitalize(), "type": "query", "datasource": DATASOURCE,
        "query": {"query": query, "refId": "variable"}, "definition": query, "refresh": 2, "sort": 1,
    }  # fmt: skip


def _panel(number: int, panel: Panel) -> Json:
    row, column = divmod(number, PANELS_PER_ROW)
    is_table = panel.kind == "table"
    targets = [
        {
            "refId": chr(ord("A") + place), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend,
            "instant": is_table, "range": not is_table, "format": panel.kind if is_table else "time_series",
        }
        for place, (legend, expr) in enumerate(panel.queries.items())
    ]  # fmt: skip
    return {
        "id": number + 1,
        "title": panel.title,
        "type": panel.kind,
        "datasource": DATASOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }
