"""What a process of the platform counts and measures of its own work, for Prometheus.

The state of the platform, which is the same for every process, is read from the database instead (monitoring/state.py).
Labels have few values: names of routes, tasks and reasons, never ids.
"""

from prometheus_client import Counter, Histogram

from athanor.core import metric_files

metric_files.install()

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TASK_SECONDS = (*_SECONDS, 60.0, 120.0, 300.0)

REQUEST_SECONDS = Histogram(
    "athanor_http_request_seconds",
    "Time from a request's start to the start of its response, by route and class of status (2xx).",
    ["method", "route", "status"],
    buckets=_SECONDS,
)
RECONCILER_SECONDS = Histogram(
    "athanor_reconciler_run_seconds", "Duration of a run of a reconciler.", ["task"], buckets=_TASK_SECONDS
)
RECONCILER_ERRORS = Counter("athanor_reconciler_errors", "Runs of a reconciler that ended with an error.", ["task"])
ADMISSION_CYCLE_SECONDS = Histogram(
    "athanor_admission_cycle_seconds", "Duration of an admission cycle, under its lock.", buckets=_TASK_SECONDS
)
ATTEMPTS_ENDED = Counter("athanor_attempts_ended", "Ended attempts, by the reason of their end.", ["cluster", "reason"])
TELEMETRY_ITEMS = Counter(
    "athanor_telemetry_items", "Points, log lines, events and samples that agents sent and were stored.", ["kind"]
)
WEBHOOK_TRIES = Counter("athanor_webhook_tries", "Tries to deliver an event to a webhook.", ["outcome"])
OBJECT_STORE_ERRORS = Counter("athanor_object_store_errors", "Requests that the object store did not answer.", ["code"])
SIGN_IN_FAILURES = Counter("athanor_sign_in_failures", "Refused sign-ins, by the step that refused them.", ["step"])
