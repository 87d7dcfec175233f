from django.db import migrations


class Migration(migrations.Migration):
    """The models moved to other apps; their tables keep their names."""

    dependencies = [
        ("operations", "0003_erasure"),
        ("compliance", "0001_initial"),
        ("scheduling", "0003_simulation"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.DeleteModel("Erasure"),
                migrations.DeleteModel("Simulation"),
                migrations.RenameModel("SweeperRun", "ReconcilerRun"),
                migrations.AlterModelTable("ReconcilerRun", "operations_sweeperrun"),
            ],
        ),
    ]
