"""The gauges of the platform's state: names, labels and what they mean. docs/reference/metrics.md lists them."""

from dataclasses import dataclass

from trainer.contract.system import SYSTEM_SERIES


@dataclass(frozen=True)
class Gauge:
    """A gauge, exposed as `athanor_NAME`. `labels`: their names, in the order of a sample's values."""

    name: str
    documentation: str
    labels: tuple[str, ...] = ()


_QUEUE = ("team", "cluster", "pool", "reason")
_POOL = ("cluster", "pool", "accelerator")
_BUDGET = ("node", "budget", "unit")
_JOB = ("team", "job_id", "name")  # `job` is a label that Prometheus adds to each series
_UNITS = {"fraction": "_ratio", "bytes": "_bytes", "celsius": "_celsius", "watts": "_watts", "megahertz": "_megahertz"}

STATE_UP = Gauge("state_up", "1 if the database answered this scrape; else there is no state.")
JOBS = Gauge("jobs", "Jobs that have not ended.", ("team", "status"))
QUEUE_JOBS = Gauge("queue_jobs", "Queued jobs, by the reason why they wait.", _QUEUE)
QUEUE_SLOTS = Gauge("queue_slots", "Slots of the queued jobs.", _QUEUE)
QUEUE_OLDEST = Gauge("queue_oldest_seconds", "Time for which the oldest of the queued jobs has waited.", _QUEUE)
ATTEMPTS = Gauge("attempts", "Attempts that have not ended.", ("cluster", "status"))
POOL_SLOTS = Gauge("pool_slots", "Slots of a pool.", _POOL)
POOL_SPARE = Gauge(
    "pool_spare_slots", "Slots of the pool's spare nodes, which are part of `athanor_pool_slots`.", _POOL
)
POOL_USED = Gauge("pool_slots_used", "Slots of a pool that jobs hold.", _POOL)
CLUSTER_AGE = Gauge(
    "cluster_observed_age_seconds", "Time since the live attempts of a cluster were observed.", ("cluster",)
)
CLUSTER_USABLE = Gauge("cluster_usable", "1 if the last health check has found no error.", ("cluster",))
CLUSTER_FINDINGS = Gauge("cluster_findings", "Findings of the last health check.", ("cluster", "level"))
NODES = Gauge("nodes", "Nodes of the last inventory.", ("cluster", "state"))
NODES_QUARANTINED = Gauge("nodes_quarantined", "Quarantined nodes.", ("cluster",))
ROWS_DUE = Gauge("reconciler_rows_due", "Rows that wait for a reconciler.", ("task",))
LAG = Gauge(
    "reconciler_lag_seconds", "Time for which the oldest row has waited for a reconciler; 0 if none waits.", ("task",)
)
RUN_AGE = Gauge("reconciler_last_run_age_seconds", "Time since the last run of a reconciler that succeeded.", ("task",))
LATE = Gauge("reconciler_late", "1 if a reconciler has missed several runs.", ("task",))
ROWS_FAILING = Gauge("reconciler_rows_failing", "Rows with work that failed lately and is tried again.", ("task",))
ROWS_GIVEN_UP = Gauge(
    "reconciler_rows_given_up", "Rows with work that was given up after repeated errors, in the last 7 days.", ("task",)
)
DELIVERIES_PENDING = Gauge(
    "webhook_deliveries_pending", "Deliveries to enabled webhooks that are not accepted yet.", ("team",)
)
DELIVERIES_OLDEST = Gauge(
    "webhook_oldest_pending_seconds", "Age of the oldest delivery that is not accepted yet.", ("team",)
)
WEBHOOKS_FAILING = Gauge("webhooks_failing", "Enabled webhooks with a failed last delivery.", ("team",))
BUDGET_AMOUNT = Gauge(
    "budget_amount", "Amount of a budget in its current period, in slot-hours or in the currency.", _BUDGET
)
BUDGET_SPENT = Gauge("budget_spent", "Spent part of a budget.", _BUDGET)
BUDGET_RESERVED = Gauge("budget_reserved", "Part of a budget that is reserved for running jobs.", _BUDGET)
BUDGET_SOFT = Gauge("budget_soft_ratio", "Share of a budget at which its teams are warned.", _BUDGET)
GOODPUT = Gauge("goodput_ratio", "Productive share of a team's slot time in the last 24 hours.", ("team",))
USAGE = Gauge("usage_slot_hours", "A team's slot time in the last 24 hours, by activity.", ("team", "activity"))
JOB_STEP = Gauge("job_step", "Newest step of a running job.", _JOB)
JOB_REPORT_AGE = Gauge("job_last_report_age_seconds", "Time since the agents of a running job last reported.", _JOB)
PROGRESS = {
    "throughput/tokens_per_second": Gauge(
        "job_tokens_per_second", "Tokens per second of all ranks, in the newest step.", _JOB
    ),
    "throughput/mfu_causal": Gauge(
        "job_mfu_ratio", "Model FLOPs utilisation of the newest step (causal attention), 0 to 1.", _JOB
    ),
    "time/step_seconds": Gauge("job_step_seconds", "Duration of the newest step.", _JOB),
    "train/loss": Gauge("job_loss", "Training loss of the newest step.", _JOB),
}
"""By the series that they show."""
SYSTEM = {
    name: Gauge(
        f"node_{name.removeprefix('system/').removesuffix('_bytes')}{_UNITS.get(series.unit, '')}",
        f"{series.title}, as a running job sampled it last.",
        ("cluster", "node", "job_id", *([series.of] if series.of else [])),
    )
    for name, series in SYSTEM_SERIES.items()
}
"""By the series that they show."""

GAUGES: tuple[Gauge, ...] = (
    *(value for value in list(vars().values()) if isinstance(value, Gauge)), *PROGRESS.values(), *SYSTEM.values(),
)  # fmt: skip
