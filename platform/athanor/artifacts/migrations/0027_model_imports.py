import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from athanor.core import tenancy

OF_A_JOB = "EXISTS (SELECT 1 FROM jobs_job parent WHERE parent.id = artifacts_artifact.job_id)"
OF_AN_IMPORT = (
    "EXISTS (SELECT 1 FROM artifacts_modelimport import"
    " WHERE import.artifact_id = artifacts_artifact.id AND athanor_sees(import.team_id))"
)


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0017_team_requires_data_report'),
        ('artifacts', '0026_replayed_segments'),
        ('jobs', '0023_replaced_nodes'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterField(
            model_name='artifact',
            name='attempt',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='artifacts', to='jobs.attempt'),
        ),
        migrations.AlterField(
            model_name='artifact',
            name='job',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='artifacts', to='jobs.job'),
        ),
        migrations.CreateModel(
            name='ModelImport',
            fields=[
                ('artifact', models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='model_import', serialize=False, to='artifacts.artifact')),
                ('not_trainable', models.TextField(blank=True, default='')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.team')),
                ('user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        tenancy.protect("artifacts_modelimport"),
        tenancy.readable(
            "artifacts_modelimport",
            "EXISTS (SELECT 1 FROM artifacts_modelversion version JOIN artifacts_modelgrant granted"
            " ON granted.model_id = version.model_id"
            " WHERE version.artifact_id = artifacts_modelimport.artifact_id AND athanor_sees(granted.team_id))",
        ),
        migrations.RunSQL(
            f"ALTER POLICY of_a_team ON artifacts_artifact USING (athanor_sees_all() OR {OF_A_JOB} OR {OF_AN_IMPORT});",
            f"ALTER POLICY of_a_team ON artifacts_artifact USING (athanor_sees_all() OR {OF_A_JOB});",
        ),
    ]
