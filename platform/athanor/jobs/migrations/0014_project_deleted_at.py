from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0013_admission_facts")]

    operations = [
        migrations.AddField(
            model_name="project",
            name="deleted_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
    ]
