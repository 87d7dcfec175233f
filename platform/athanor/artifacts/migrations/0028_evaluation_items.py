from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('artifacts', '0027_model_imports'),
    ]

    operations = [
        migrations.AddField(
            model_name='evaluationresult',
            name='items',
            field=models.BinaryField(null=True),
        ),
    ]
