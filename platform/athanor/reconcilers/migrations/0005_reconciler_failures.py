"""The last runs of reconcilers moved to Valkey, since they were written all the time.

The columns stay, since the previous release writes them; the next one may drop them.
"""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("operations", "0004_reconciler_runs")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameModel("ReconcilerRun", "ReconcilerFailure"),
                migrations.RemoveField("ReconcilerFailure", "ran_at"),
                migrations.RemoveField("ReconcilerFailure", "seconds"),
            ]
        ),
    ]
