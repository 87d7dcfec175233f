import django.db.models.deletion
from django.db import migrations, models

from athanor.core import tenancy

OF_LIVE_ATTEMPTS = """
INSERT INTO jobs_rendezvousround (attempt_id, number, needed, total, joined, enough_at, first_node)
SELECT attempt.id, newest.number, asked.nodes, asked.nodes + asked.spare_nodes, newest.joined,
    CASE WHEN newest.joined >= asked.nodes THEN newest.last_joined_at END, newest.first_node
FROM jobs_attempt AS attempt
JOIN jobs_job AS job ON job.id = attempt.job_id
CROSS JOIN LATERAL (
    SELECT coalesce((job.resolved_spec->'resources'->>'nodes')::int, 1) AS nodes,
        coalesce((job.resolved_spec->'resources'->>'spare_nodes')::int, 0) AS spare_nodes
) AS asked
CROSS JOIN LATERAL (
    SELECT node.round AS number, count(*) AS joined, max(node.joined_at) AS last_joined_at,
        max(node.node_index) FILTER (WHERE node.node_rank = 0) AS first_node
    FROM jobs_attemptnode AS node WHERE node.attempt_id = attempt.id
    GROUP BY node.round ORDER BY node.round DESC LIMIT 1
) AS newest
WHERE attempt.status <> 'ended'
"""


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0017_name_search'),
    ]

    operations = [
        migrations.AlterField(
            model_name='attemptnode',
            name='attempt',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='nodes', to='jobs.attempt'),
        ),
        migrations.CreateModel(
            name='RendezvousRound',
            fields=[
                ('attempt', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to='jobs.attempt')),
                ('number', models.PositiveIntegerField()),
                ('needed', models.PositiveIntegerField()),
                ('total', models.PositiveIntegerField()),
                ('joined', models.PositiveIntegerField(default=0)),
                ('enough_at', models.DateTimeField(null=True)),
                ('first_node', models.PositiveIntegerField(null=True)),
            ],
        ),
        tenancy.through('jobs_rendezvousround', 'jobs_attempt', 'attempt_id'),
        migrations.RunSQL(OF_LIVE_ATTEMPTS, migrations.RunSQL.noop),
    ]
