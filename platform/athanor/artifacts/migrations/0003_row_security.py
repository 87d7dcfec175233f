"""The second wall between teams: see athanor.core.tenancy."""

from typing import ClassVar

from django.db import migrations

from athanor.core import tenancy


class Migration(migrations.Migration):
    dependencies: ClassVar = [("artifacts", "0002_team_secrets"), ("jobs", "0004_row_security")]
    operations: ClassVar = [
        tenancy.protect("artifacts_teamkey"),
        tenancy.protect("artifacts_datakey"),
        tenancy.protect("artifacts_teamsecret"),
        tenancy.protect("artifacts_dataset"),
        tenancy.through("artifacts_prepareddataset", "artifacts_dataset", "dataset_id"),
        tenancy.through("artifacts_checkpoint", "jobs_job", "job_id"),
        tenancy.through("artifacts_artifact", "jobs_job", "job_id"),
    ]
