from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('budgets', '0003_rates'),
    ]

    operations = [
        migrations.AddField(
            model_name='series',
            name='asked_at',
            field=models.DateTimeField(null=True),
        ),
    ]
