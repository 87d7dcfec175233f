from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("webhooks", "0004_format")]

    operations = [
        migrations.AlterField(
            model_name="webhook",
            name="format",
            field=models.CharField(
                choices=[("cloudevents", "Cloudevents"), ("slack", "Slack"), ("openlineage", "Openlineage")],
                db_default="cloudevents",
                default="cloudevents",
                max_length=12,
            ),
        ),
    ]
