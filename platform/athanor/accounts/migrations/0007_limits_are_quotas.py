from django.db import migrations


class Migration(migrations.Migration):
    """A team's limits are those of its leaf of the quota tree."""

    dependencies = [("accounts", "0006_names_of_things"), ("quotas", "0002_leaves_of_teams")]
    operations = [
        migrations.RemoveField(model_name="team", name="max_running_jobs"),
        migrations.RemoveField(model_name="team", name="max_slots"),
    ]
