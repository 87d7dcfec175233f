"""What a backend with a queue and nodes of its own says of an attempt, and the places of its agents."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models

from athanor.core import tenancy


class Migration(migrations.Migration):

    dependencies: ClassVar = [
        ('jobs', '0010_job_more_dataset_ids'),
    ]

    operations: ClassVar = [
        migrations.AddField(
            model_name='attempt',
            name='cause',
            field=models.CharField(blank=True, default='', max_length=20),
        ),
        migrations.AddField(
            model_name='attempt',
            name='expected_start_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='attempt',
            name='explanation',
            field=models.TextField(blank=True, default=''),
        ),
        migrations.AddField(
            model_name='attempt',
            name='native_nodes',
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name='attempt',
            name='native_restarts',
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='attempt',
            name='phase',
            field=models.CharField(blank=True, default='', max_length=10),
        ),
        migrations.CreateModel(
            name='AttemptNode',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('node_index', models.PositiveIntegerField()),
                ('round', models.PositiveIntegerField()),
                ('name', models.CharField(max_length=255)),
                ('address', models.CharField(max_length=255)),
                ('store_port', models.PositiveIntegerField()),
                ('topology', models.JSONField(default=list)),
                ('node_rank', models.PositiveIntegerField(null=True)),
                ('joined_at', models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
                ("resume_id", models.CharField(blank=True, default="", max_length=40)),
                ('attempt', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='nodes', to='jobs.attempt')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('attempt', 'node_index'), name='one_place_per_node_of_an_attempt')],
            },
        ),
        tenancy.through("jobs_attemptnode", "jobs_attempt", "attempt_id"),
        migrations.AddField("attempt", "launched_at", models.DateTimeField(null=True)),
        # Until now there was no queue between a submission and its start.
        migrations.RunSQL(
            "UPDATE jobs_attempt SET launched_at = coalesce(submitted_at, created_at) WHERE status <> 'ended'",
            migrations.RunSQL.noop,
        ),
    ]
