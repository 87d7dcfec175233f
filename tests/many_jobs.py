"""A great many jobs in a few seconds, for plans of queries and for benchmarks: copies of one, inserted by SQL alone.

Jobs are a second apart, the newest made now. Of every 100, 95 have succeeded, 3 failed, 1 was cancelled and 1 waits;
one in 5,000 runs. Fifty projects; labels `sweep` (500 values) and `env` (prod or dev). Each has an ended attempt.
"""

from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.utils import timezone
from ulid import ULID

from athanor.jobs.models import Attempt, Job
from athanor.telemetry.models import Progress

JOBS: dict[str, str] = {
    "id": "'job_' || made.ulid",
    "name": "'llama-' || (made.n %% 997) || '-lr' || (made.n %% 7)",
    "status": """CASE WHEN made.n %% 5000 = 7 THEN 'running' WHEN made.n %% 100 = 0 THEN 'queued'
      WHEN made.n %% 100 = 1 THEN 'cancelled' WHEN made.n %% 100 < 5 THEN 'failed' ELSE 'succeeded' END""",
    "project": "'project-' || (made.n %% 50)",
    "labels": """jsonb_build_object('sweep', (made.n %% 500)::text,
      'env', CASE made.n %% 2 WHEN 0 THEN 'prod' ELSE 'dev' END)""",
    "created_at": "made.at", "queued_at": "made.at", "updated_at": "made.at",
}  # fmt: skip
ATTEMPTS: dict[str, str] = {
    "id": "'att_' || made.ulid",
    "job_id": "'job_' || made.ulid",
    "backend_name": "'many-' || made.ulid",
    "status": "'ended'",
    "created_at": "made.at",
}
PROGRESS: dict[str, str] = {"job_id": "'job_' || made.ulid", "updated_at": "made.at"}
LABELS = """
INSERT INTO jobs_label (job_id, team_id, key, value)
SELECT job.id, job.team_id, label.key, label.value FROM jobs_job AS job, jsonb_each_text(job.labels) AS label
ON CONFLICT DO NOTHING
"""


NAMES = """
INSERT INTO jobs_namesearch (job_id, team_id, keys)
SELECT id, team_id, athanor_grams(name) || ARRAY['#' || right(id, 6), team_id] FROM jobs_job ON CONFLICT DO NOTHING
"""


def fill(attempt: Attempt, count: int) -> None:
    """`count` more jobs like the attempt's, and attempts like it."""
    Progress.objects.get_or_create(job_id=attempt.job_id, defaults={"step": 5, "values": {"train/loss": 1.5}})
    now = timezone.now()
    times = [now - timedelta(seconds=count - number) for number in range(count)]
    ulids = [str(ULID.from_datetime(at)) for at in times]
    _copy(Job, attempt.job_id, JOBS, ulids, times)
    _copy(Attempt, attempt.pk, ATTEMPTS, ulids, times)
    _copy(Progress, attempt.job_id, PROGRESS, ulids, times)
    with connection.cursor() as cursor:
        cursor.execute(LABELS)
        cursor.execute(NAMES)


def settle() -> None:
    """As autovacuum leaves tables soon after. Outside of a transaction."""
    with connection.cursor() as cursor:
        for table in ("jobs_job", "jobs_attempt", "jobs_label", "jobs_namesearch", "telemetry_progress"):
            cursor.execute(f"VACUUM ANALYZE {table}")


def _copy(model: Any, pk: str, changed: dict[str, str], ulids: list[str], times: list[datetime]) -> None:
    columns = [field.column for field in model._meta.concrete_fields]
    columns = [name for name in columns if name in changed or name != "id"]
    values = ", ".join(changed.get(name, f"one.{name}") for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {model._meta.db_table} ({', '.join(columns)})"
            f" SELECT {values} FROM {model._meta.db_table} one,"
            " unnest(%s::text[], %s::timestamptz[]) WITH ORDINALITY AS made(ulid, at, n)"
            f" WHERE one.{model._meta.pk.column} = %s",
            [ulids, times, pk],
        )
