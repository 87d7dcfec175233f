import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
from django.db import migrations, models

from athanor.core import tenancy

# By hand: Django would add an index for LIKE to the key, which each submit would pay for.
TABLE = """
CREATE TABLE jobs_namesearch (
    job_id varchar(40) NOT NULL PRIMARY KEY, team_id varchar(40) NOT NULL, keys text[] NOT NULL
);
"""

# In capitals, because a search compares capitals (`icontains`): where one text contains another, so do its 3-grams.
FUNCTIONS = """
CREATE FUNCTION athanor_grams(value text) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT ARRAY(
        SELECT DISTINCT substr(upper(value), place, 3) FROM generate_series(1, length(upper(value)) - 2) AS place
    )
$$;
CREATE FUNCTION athanor_search(setting text) RETURNS text[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT string_to_array(nullif(current_setting(setting, true), ''), E'\\x1f')
$$;
CREATE FUNCTION jobs_namesearch_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jobs_namesearch (job_id, team_id, keys)
    SELECT id, team_id, athanor_grams(name) || ARRAY['#' || right(id, 6), team_id] FROM jobs_job WHERE id = NEW.job_id
    ON CONFLICT (job_id) DO NOTHING;
    RETURN NULL;
END $$;
"""

OF_EARLIER_JOBS = """
INSERT INTO jobs_namesearch (job_id, team_id, keys)
SELECT id, team_id, athanor_grams(name) || ARRAY['#' || right(id, 6), team_id] FROM jobs_job
ON CONFLICT (job_id) DO NOTHING
"""

# When a submission gets its number in the feed of its team, after its commit: see jobs/name_search.py.
TRIGGER = """
CREATE TRIGGER names_are_searchable AFTER UPDATE OF team_seq ON jobs_jobevent FOR EACH ROW
WHEN (OLD.team_seq IS NULL AND NEW.type = 'job.submitted') EXECUTE FUNCTION jobs_namesearch_write()
"""


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0016_work_failures"),
        ("jobs", "0016_jobs_by_person"),
    ]

    operations = [
        migrations.RunSQL(
            FUNCTIONS,
            "DROP FUNCTION jobs_namesearch_write(); DROP FUNCTION athanor_search(text); DROP FUNCTION athanor_grams(text)",
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(TABLE, "DROP TABLE jobs_namesearch")],
            state_operations=[
                migrations.CreateModel(
                    name="NameSearch",
                    fields=[
                        ("job", models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name="+", serialize=False, to="jobs.job")),
                        ("keys", django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None)),
                        ("team", models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.team")),
                    ],
                ),
            ],
        ),
        migrations.RunSQL(OF_EARLIER_JOBS, migrations.RunSQL.noop),
        migrations.AddIndex(
            model_name="namesearch",
            index=django.contrib.postgres.indexes.GinIndex(fields=["keys"], gin_pending_list_limit=256, name="jobs_by_part_of_name"),
        ),
        migrations.RunSQL(TRIGGER, "DROP TRIGGER names_are_searchable ON jobs_jobevent"),
        # Those that were numbered between the first pass and the trigger.
        migrations.RunSQL(
            OF_EARLIER_JOBS.replace("FROM jobs_job", "FROM jobs_job WHERE created_at > now() - interval '1 day'"),
            migrations.RunSQL.noop,
        ),
        # While a search is set, only what it can find is visible: see jobs/name_search.py.
        tenancy.protect(
            "jobs_namesearch",
            "athanor_sees(team_id) AND (keys @> coalesce(athanor_search('athanor.search'), '{}')"
            " OR keys @> athanor_search('athanor.search_id'))",
        ),
    ]
