from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("artifacts", "0006_sizes_of_preparations")]
    operations = [
        migrations.AddField(model_name="teamsecret", name="destinations", field=models.JSONField(default=list)),
    ]
