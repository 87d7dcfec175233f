"""The alerts of the platform. Each has a runbook in docs/runbooks/alerts, and a planted fault in its tests.

Gauges are the same from each web process, so they are aggregated by max; counters of processes by sum.
"""

from dataclasses import dataclass
from typing import Literal

from athanor.core import task_triggers
from athanor.jobs.reasons import MEANINGS, Blame

Group = Literal["platform", "clusters", "jobs", "teams"]
Severity = Literal["critical", "warning"]

# Tasks for which users notice a delay. Others wait for a budget of their own, such as the scrub, and observation has
# an alert for each cluster.
URGENT_TASKS = (
    task_triggers.ADMIT, task_triggers.DISPATCH, task_triggers.FINALISE, task_triggers.PUBLISH, task_triggers.METER,
)  # fmt: skip
INFRASTRUCTURE_REASONS = sorted(
    reason.value
    for reason, meaning in MEANINGS.items()
    if meaning.final is not None and meaning.blame in (Blame.INFRASTRUCTURE, Blame.PLATFORM)
)
OWN_HEALTH = 'route!~"healthz|readyz|metrics"'


@dataclass(frozen=True)
class Alert:
    """An alert. `lasts`: for how long `expr` must give a result. `summary` and `description`: Prometheus templates."""

    name: str
    group: Group
    severity: Severity
    expr: str
    lasts: str
    summary: str
    description: str


def _any_of(values: tuple[str, ...] | list[str]) -> str:
    return "|".join(value.replace(".", "[.]") for value in values)


ALERTS = (
    Alert(
        "AthanorDown", "platform", "critical",
        'up{job=~"athanor.*"} == 0', "2m",
        "{{ $labels.instance }} does not answer",
        "A process of the platform has not answered a scrape for two minutes. Running jobs continue; "
        "without any web process nothing can be submitted, read or reported.",
    ),
    Alert(
        "AthanorDatabaseUnavailable", "platform", "critical",
        "max(athanor_state_up) == 0", "2m",
        "The database does not answer the platform",
        "The web answers scrapes, but cannot read the database. The API answers 503; running jobs continue and agents "
        "report later.",
    ),
    Alert(
        "AthanorRequestErrors", "platform", "warning",
        f'sum(rate(athanor_http_request_seconds_count{{status="5xx",{OWN_HEALTH}}}[5m]))\n'
        f"  / sum(rate(athanor_http_request_seconds_count{{{OWN_HEALTH}}}[5m])) > 0.02", "5m",
        "{{ $value | humanizePercentage }} of the requests fail",
        "More than 2 % of the requests have ended with an error of the platform (5xx) for five minutes.",
    ),
    Alert(
        "AthanorRequestsSlow", "platform", "warning",
        f"histogram_quantile(0.99, sum by (le) (rate(athanor_http_request_seconds_bucket{{{OWN_HEALTH}}}[5m]))) > 2",
        "10m",
        "One request in a hundred takes more than {{ $value | humanizeDuration }}",
        "The 99th percentile of the time to a response has been above two seconds for ten minutes.",
    ),
    Alert(
        "AthanorReconcilerLate", "platform", "critical",
        "max by (task) (athanor_reconciler_late) == 1", "2m",
        "{{ $labels.task }} does not run",
        "A reconciler has missed its last runs: no worker runs it, beat does not trigger it, or it fails each time.",
    ),
    Alert(
        "AthanorReconcilerErrors", "platform", "warning",
        "sum by (task) (increase(athanor_reconciler_errors_total[15m])) > 3", "5m",
        "{{ $labels.task }} fails repeatedly",
        "A reconciler has ended with an error more than three times within 15 minutes.",
    ),
    Alert(
        "AthanorReconcilerBehind", "platform", "warning",
        f'max by (task) (athanor_reconciler_lag_seconds{{task=~"{_any_of(URGENT_TASKS)}"}}) > 300', "5m",
        "{{ $labels.task }} is {{ $value | humanizeDuration }} behind",
        "A row has waited for more than five minutes for a reconciler that works within seconds.",
    ),
    Alert(
        "AthanorWorkGivenUp", "platform", "warning",
        "max by (task) (athanor_reconciler_rows_given_up) > 0", "0m",
        "{{ $labels.task }} has given up {{ $value }} rows",
        "The same unexpected error ended the work on a row 12 times; it is not tried again. It is probably a bug.",
    ),
    Alert(
        "AthanorAdmissionSlow", "platform", "warning",
        "histogram_quantile(0.95, sum by (le) (rate(athanor_admission_cycle_seconds_bucket[10m]))) > 5", "10m",
        "An admission cycle takes {{ $value | humanizeDuration }}",
        "The 95th percentile of admission cycles has been above five seconds for ten minutes. They run one at a time, "
        "so free slots wait.",
    ),
    Alert(
        "AthanorObjectStoreErrors", "platform", "critical",
        "sum by (code) (increase(athanor_object_store_errors_total[10m])) > 5", "5m",
        "The object store fails with {{ $labels.code }}",
        "The platform's own requests to the object store fail. Checkpoints of running jobs are in danger: a run that "
        "cannot store one restarts from its last.",
    ),
    Alert(
        "AthanorSignInFailures", "platform", "warning",
        "sum(increase(athanor_sign_in_failures_total[10m])) > 50", "0m",
        "{{ $value | humanize }} refused sign-ins within ten minutes",
        "Somebody may be guessing passwords or second factors. Tries are delayed for the name and the address.",
    ),
    Alert(
        "AthanorWebhooksBehind", "platform", "warning",
        "max by (team) (athanor_webhook_oldest_pending_seconds) > 3600", "10m",
        "A delivery to a webhook of {{ $labels.team }} is {{ $value | humanizeDuration }} late",
        "An event has not been accepted for an hour. A webhook that accepts nothing is disabled in the end.",
    ),
    Alert(
        "AthanorClusterUnusable", "clusters", "critical",
        "max by (cluster) (athanor_cluster_usable) == 0", "5m",
        "Cluster {{ $labels.cluster }} cannot run jobs",
        "The health check of the cluster finds an error: `athanor cluster probe {{ $labels.cluster }}` names it.",
    ),
    Alert(
        "AthanorClusterNotObserved", "clusters", "critical",
        "max by (cluster) (athanor_cluster_observed_age_seconds) > 300", "2m",
        "The attempts on {{ $labels.cluster }} were last observed {{ $value | humanizeDuration }} ago",
        "The platform has live attempts there, and does not know what became of them.",
    ),
    Alert(
        "AthanorNodesDown", "clusters", "warning",
        'max by (cluster) (athanor_nodes{state="down"})\n'
        "  / on (cluster) sum by (cluster) (max by (cluster, state) (athanor_nodes)) > 0.1", "15m",
        "{{ $value | humanizePercentage }} of the nodes of {{ $labels.cluster }} are down",
        "More than a tenth of the nodes of a cluster have been down for 15 minutes.",
    ),
    Alert(
        "AthanorInfrastructureFaults", "clusters", "warning",
        "sum by (cluster, reason) (increase(athanor_attempts_ended_total"
        f'{{reason=~"{_any_of(INFRASTRUCTURE_REASONS)}"}}[1h])) > 5', "0m",
        "Attempts on {{ $labels.cluster }} end with {{ $labels.reason }}",
        "More than five attempts within an hour have ended for the same fault of the infrastructure.",
    ),
    Alert(
        "AthanorQueueStuck", "clusters", "warning",
        'max by (cluster, pool) (athanor_queue_oldest_seconds{reason="waiting_for_capacity"}) > 1800\n'
        "  and on (cluster, pool) max by (cluster, pool)\n"
        "    (athanor_pool_slots - athanor_pool_spare_slots - athanor_pool_slots_used)\n"
        "  >= on (cluster, pool) max by (cluster, pool) (athanor_pool_slots) / 2", "30m",
        "Jobs wait for {{ $labels.cluster }}/{{ $labels.pool }} although half of it is free",
        "A job has waited for capacity for more than half an hour while half of the slots of its pool are free.",
    ),
    Alert(
        "AthanorJobSilent", "jobs", "warning",
        "max by (team, job_id, name) (athanor_job_last_report_age_seconds) > 300", "5m",
        "Job {{ $labels.name }} has not reported for {{ $value | humanizeDuration }}",
        "No agent of a running job has sent a heartbeat for more than five minutes.",
    ),
    Alert(
        "AthanorJobSlower", "jobs", "warning",
        "max by (team, job_id, name) (athanor_job_tokens_per_second)\n"
        "  < 0.7 * max by (team, job_id, name) (avg_over_time(athanor_job_tokens_per_second[2h] offset 15m))", "15m",
        "Job {{ $labels.name }} trains more than 30 % slower than before",
        "The tokens per second of a job have been below 70 % of their mean of the two hours before for 15 minutes.",
    ),
    Alert(
        "AthanorGpuThrottled", "jobs", "warning",
        "max by (cluster, node, job_id, gpu) (athanor_node_gpu_throttled_ratio) > 0", "10m",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} is slowed down",
        "Heat, power or a fault has slowed a GPU of a running job down for ten minutes; all its ranks wait for it.",
    ),
    Alert(
        "AthanorGpuMemoryErrors", "jobs", "critical",
        "max by (cluster, node, job_id, gpu) (athanor_node_gpu_ecc_uncorrected) > 0", "0m",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} has uncorrected memory errors",
        "The driver of a GPU that a job runs on has counted ECC errors that could not be corrected.",
    ),
    Alert(
        "AthanorNodeDiskFull", "jobs", "warning",
        "max by (cluster, node, job_id) (athanor_node_disk_used_ratio) > 0.95", "5m",
        "The work disk of {{ $labels.node }} is {{ $value | humanizePercentage }} full",
        "Jobs on the node can soon write neither checkpoints nor caches.",
    ),
    Alert(
        "AthanorBudgetNearlySpent", "teams", "warning",
        "max by (node, budget, unit) (athanor_budget_spent + athanor_budget_reserved)\n"
        "  / max by (node, budget, unit) (athanor_budget_amount)\n"
        "  >= max by (node, budget, unit) (athanor_budget_soft_ratio)", "0m",
        "{{ $value | humanizePercentage }} of budget {{ $labels.budget }} of {{ $labels.node }} is spent or reserved",
        "The share at which the teams are warned is reached. When a hard budget is used up, its jobs save a checkpoint "
        "and wait for the next period.",
    ),
    Alert(
        "AthanorGoodputLow", "teams", "warning",
        "max by (team) (athanor_goodput_ratio) < 0.5\n"
        "  and on (team) sum by (team) (max by (team, activity) (athanor_usage_slot_hours)) > 24", "1h",
        "Only {{ $value | humanizePercentage }} of the slot time of {{ $labels.team }} trains",
        "Less than half of the slot time of a team in the last 24 hours was productive, of at least a slot-day.",
    ),
)  # fmt: skip


def rules_document(platform_url: str) -> dict[str, object]:
    """Return the file of rules. `platform_url`: where the platform serves its runbooks."""
    groups: dict[str, list[dict[str, object]]] = {}
    for alert in ALERTS:
        rule: dict[str, object] = {"alert": alert.name, "expr": alert.expr}
        if alert.lasts != "0m":
            rule["for"] = alert.lasts
        rule["labels"] = {"severity": alert.severity}
        rule["annotations"] = {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{platform_url.rstrip('/')}/docs/runbooks/alerts/{alert.name}",
        }
        groups.setdefault(f"athanor-{alert.group}", []).append(rule)
    return {"groups": [{"name": name, "rules": rules} for name, rules in groups.items()]}
