"""What the nodes of a run sample of their machines, aggregated over the nodes."""

import django.db.models.deletion
from django.db import migrations, models

from athanor.core import tenancy


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0020_nodes_that_left'),
        ('telemetry', '0006_timings_from_events'),
    ]

    operations = [
        migrations.CreateModel(
            name='NodeSample',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('node', models.CharField(max_length=253)),
                ('time', models.DateTimeField()),
                ('values', models.JSONField()),
                ('attempt', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='jobs.attempt')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('attempt', 'node'), name='one_sample_per_node')],
            },
        ),
        migrations.CreateModel(
            name='SystemInterval',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('time', models.DateTimeField(help_text='start of the interval')),
                ('seconds', models.PositiveIntegerField(help_text='length of the interval')),
                ('values', models.JSONField()),
                ('attempt', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='jobs.attempt')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('attempt', 'seconds', 'time'), name='one_row_per_system_interval')],
            },
        ),
        tenancy.through('telemetry_nodesample', 'jobs_attempt', 'attempt_id'),
        tenancy.through('telemetry_systeminterval', 'jobs_attempt', 'attempt_id'),
    ]
