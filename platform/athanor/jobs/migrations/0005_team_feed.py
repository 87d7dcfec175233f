import django.db.models.deletion
from django.db import migrations, models

from athanor.core import tenancy

TEAMS = """
UPDATE jobs_jobevent AS event SET team_id = job.team_id FROM jobs_job AS job WHERE job.id = event.job_id
"""
# It was asked of the event's job as long as the event did not know its team.
OWN_POLICY = "ALTER POLICY of_a_team ON jobs_jobevent USING (athanor_sees(team_id))"
POLICY_BEFORE = """
ALTER POLICY of_a_team ON jobs_jobevent
USING (athanor_sees_all() OR EXISTS (SELECT 1 FROM jobs_job parent WHERE parent.id = jobs_jobevent.job_id))
"""


class Migration(migrations.Migration):
    """Events made before this get their numbers from jobs/feed.py, like any others, in the order of their ids."""

    dependencies = [
        ("accounts", "0004_sign_in_tries"),
        ("jobs", "0004_row_security"),
    ]

    operations = [
        migrations.CreateModel(
            name="EventHead",
            fields=[
                ("team", models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name="+", serialize=False, to="accounts.team")),
                ("seq", models.BigIntegerField()),
            ],
        ),
        migrations.AddField(
            model_name="jobevent",
            name="team_seq",
            field=models.BigIntegerField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="jobevent",
            name="team",
            field=models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.team"),
        ),
        migrations.RunSQL(TEAMS, migrations.RunSQL.noop),
        migrations.AlterField(
            model_name="jobevent",
            name="team",
            field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.team"),
        ),
        migrations.AddIndex(
            model_name="jobevent",
            index=models.Index(condition=models.Q(("team_seq__isnull", True)), fields=["id"], name="events_without_a_number"),
        ),
        migrations.AddConstraint(
            model_name="jobevent",
            constraint=models.UniqueConstraint(fields=("team", "team_seq"), name="event_team_seq_is_unique_in_a_team"),
        ),
        migrations.RunSQL(OWN_POLICY, POLICY_BEFORE),
        tenancy.protect("jobs_eventhead"),
    ]
