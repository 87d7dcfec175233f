import django.db.models.deletion
from django.db import migrations, models

from athanor.core import tenancy


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0016_work_failures'),
        ('artifacts', '0022_signing_keys'),
        ('jobs', '0023_replaced_nodes'),
    ]

    operations = [
        migrations.CreateModel(
            name='EvaluationResult',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('base', models.CharField(max_length=1100)),
                ('name', models.CharField(max_length=63)),
                ('metric', models.CharField(max_length=30)),
                ('source', models.CharField(max_length=1100)),
                ('value', models.FloatField()),
                ('n', models.BigIntegerField()),
                ('tokens', models.BigIntegerField()),
                ('standard_error', models.FloatField(null=True)),
                ('low', models.FloatField(null=True)),
                ('high', models.FloatField(null=True)),
                ('trained_on', models.JSONField(null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('artifact', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='evaluations', to='artifacts.artifact')),
                ('attempt', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='jobs.attempt')),
                ('dataset', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='artifacts.dataset')),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='evaluations', to='jobs.job')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.team')),
            ],
        ),
        migrations.AddConstraint(
            model_name='evaluationresult',
            constraint=models.UniqueConstraint(fields=('job', 'name', 'metric'), name='one_result_of_a_metric_per_job'),
        ),
        tenancy.protect("artifacts_evaluationresult"),
    ]
