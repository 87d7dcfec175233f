from django.db import migrations
from django.db.migrations import RunSQL

# Jobs that ran before this version are looked at once.
EARLIER_JOBS = """
    INSERT INTO artifacts_jobstorage (job_id, team_id, newest_attempt, next_scan_at, unreferenced_objects,
        unreferenced_bytes, removed_objects, removed_bytes, found_objects, found_bytes, cursor)
    SELECT job.id, job.team_id, max(attempt.id), now(), 0, 0, 0, 0, 0, 0, ''
    FROM jobs_job job JOIN jobs_attempt attempt ON attempt.job_id = job.id GROUP BY job.id, job.team_id
    ON CONFLICT DO NOTHING
"""


class Migration(migrations.Migration):
    dependencies = [("artifacts", "0012_deletions_of_projects_and_teams")]

    operations = [RunSQL(EARLIER_JOBS, RunSQL.noop)]
