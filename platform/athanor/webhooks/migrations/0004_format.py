from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("webhooks", "0003_names_of_things")]

    operations = [
        migrations.AddField(
            model_name="webhook",
            name="format",
            field=models.CharField(
                choices=[("cloudevents", "Cloudevents"), ("slack", "Slack")],
                db_default="cloudevents",
                default="cloudevents",
                max_length=12,
            ),
        ),
    ]
