from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0016_work_failures'),
        ('jobs', '0016_jobs_by_person'),
        ('scheduling', '0003_simulation'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddIndex(
            model_name='simulation',
            index=models.Index(fields=['ended_at'], name='simulations_by_end'),
        ),
        migrations.AddIndex(
            model_name='startestimate',
            index=models.Index(fields=['made_at'], name='estimates_by_age'),
        ),
    ]
