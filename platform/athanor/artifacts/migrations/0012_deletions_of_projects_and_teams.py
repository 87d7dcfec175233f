from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("artifacts", "0011_jobstorage")]

    operations = [
        migrations.AlterField(
            model_name="deletion",
            name="kind",
            field=models.CharField(
                choices=[
                    ("job", "Job"),
                    ("artifact", "Artifact"),
                    ("checkpoint", "Checkpoint"),
                    ("dataset", "Dataset"),
                    ("project", "Project"),
                    ("team", "Team"),
                ],
                max_length=10,
            ),
        ),
    ]
