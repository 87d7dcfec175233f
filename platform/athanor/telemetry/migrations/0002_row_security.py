"""The second wall between teams: see athanor.core.tenancy."""

from typing import ClassVar

from django.db import migrations

from athanor.core import tenancy


class Migration(migrations.Migration):
    dependencies: ClassVar = [("telemetry", "0001_initial"), ("jobs", "0004_row_security")]
    operations: ClassVar = [
        tenancy.through("telemetry_progress", "jobs_job", "job_id"),
        tenancy.through("telemetry_heartbeat", "jobs_attempt", "attempt_id"),
        tenancy.through("telemetry_writer", "jobs_attempt", "attempt_id"),
        tenancy.through("telemetry_metricchunk", "jobs_attempt", "attempt_id"),
        tenancy.through("telemetry_logchunk", "jobs_attempt", "attempt_id"),
    ]
