import django.db.models.deletion
from django.db import migrations, models

from athanor.core import tenancy


class Migration(migrations.Migration):

    dependencies = [
        ('artifacts', '0015_detected_fields'),
        ('jobs', '0016_jobs_by_person'),
    ]

    operations = [
        migrations.CreateModel(
            name='PreparationClaim',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('lease_token', models.UUIDField(editable=False, null=True)),
                ('lease_until', models.DateTimeField(editable=False, null=True)),
                ('recipe', models.CharField(max_length=64)),
                ('data_error', models.TextField(blank=True, default='')),
                ('failed_at', models.DateTimeField(null=True)),
                ('attempt', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='jobs.attempt')),
                ('dataset', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='artifacts.dataset')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('dataset', 'recipe'), name='one_claim_per_recipe')],
            },
        ),
        tenancy.through("artifacts_preparationclaim", "artifacts_dataset", "dataset_id"),
    ]
