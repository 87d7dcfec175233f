"""The second wall between teams: see athanor.core.tenancy."""

from typing import ClassVar

from django.db import migrations

from athanor.core import tenancy


class Migration(migrations.Migration):
    dependencies: ClassVar = [("jobs", "0003_pause_expiry_dependencies")]
    operations: ClassVar = [
        tenancy.FUNCTIONS,
        tenancy.protect("jobs_job"),
        tenancy.protect("jobs_idempotencyrecord"),
        tenancy.through("jobs_attempt", "jobs_job", "job_id"),
        tenancy.through("jobs_jobevent", "jobs_job", "job_id"),
        tenancy.through("jobs_dependency", "jobs_job", "job_id"),
    ]
