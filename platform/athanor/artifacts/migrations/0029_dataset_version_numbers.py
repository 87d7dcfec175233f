"""Make the numbers of versions unique, in place of the names of data sets.

The index is built while rows are written. A migration that ended in between can be run again.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('artifacts', '0028_dataset_versions'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AddConstraint(
                    model_name='dataset',
                    constraint=models.UniqueConstraint(fields=('team', 'name', 'version'), name='version_is_unique_in_a_data_set'),
                ),
                migrations.RemoveConstraint(model_name='dataset', name='dataset_name_is_unique_in_a_team'),
            ],
            database_operations=[
                migrations.RunSQL(
                    [
                        "ALTER TABLE artifacts_dataset DROP CONSTRAINT IF EXISTS version_is_unique_in_a_data_set",
                        "DROP INDEX CONCURRENTLY IF EXISTS version_is_unique_in_a_data_set",
                        "CREATE UNIQUE INDEX CONCURRENTLY version_is_unique_in_a_data_set"
                        " ON artifacts_dataset (team_id, name, version)",
                        "ALTER TABLE artifacts_dataset ADD CONSTRAINT version_is_unique_in_a_data_set"
                        " UNIQUE USING INDEX version_is_unique_in_a_data_set",
                        "ALTER TABLE artifacts_dataset DROP CONSTRAINT IF EXISTS dataset_name_is_unique_in_a_team",
                    ],
                    migrations.RunSQL.noop,
                ),
            ],
        ),
    ]
