import django.db.models.deletion
from django.db import migrations, models

from athanor.core import tenancy

OF_EARLIER_JOBS = """
INSERT INTO jobs_datasetuse (job_id, team_id, dataset_id, prepares)
SELECT job.id, job.team_id, dataset.id, job.resolved_spec->>'training' IS NULL
FROM jobs_job AS job
CROSS JOIN LATERAL (
    SELECT job.dataset_id AS id UNION SELECT jsonb_array_elements_text(job.more_dataset_ids)
) AS used
JOIN artifacts_dataset AS dataset ON dataset.id = used.id AND dataset.origin <> 'builtin'
"""


class Migration(migrations.Migration):

    dependencies = [
        ('artifacts', '0001_initial'),
        ('accounts', '0016_work_failures'),
        ('jobs', '0014_project_deleted_at'),
    ]

    operations = [
        migrations.CreateModel(
            name='DatasetUse',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('dataset_id', models.CharField(max_length=40)),
                ('prepares', models.BooleanField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='jobs.job')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.team')),
            ],
            options={
                'indexes': [models.Index(fields=['dataset_id', '-job'], name='jobs_by_dataset')],
            },
        ),
        tenancy.protect('jobs_datasetuse'),
        migrations.RunSQL(OF_EARLIER_JOBS, migrations.RunSQL.noop),
    ]
