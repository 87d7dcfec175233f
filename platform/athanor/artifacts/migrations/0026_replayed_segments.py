import django.db.models.deletion
from django.db import migrations, models

from athanor.core import tenancy


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0016_work_failures'),
        ('artifacts', '0025_model_grants'),
        ('jobs', '0023_replaced_nodes'),
    ]

    operations = [
        migrations.CreateModel(
            name='ReplayedSegment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('start', models.CharField(blank=True, max_length=40)),
                ('end', models.CharField(max_length=40)),
                ('first_step', models.PositiveIntegerField()),
                ('last_step', models.PositiveIntegerField()),
                ('verdict', models.CharField(choices=[('equal', 'Equal'), ('within_tolerance', 'Within Tolerance'), ('differs', 'Differs'), ('not_comparable', 'Not Comparable')], max_length=20)),
                ('is_exact', models.BooleanField()),
                ('tolerance', models.FloatField()),
                ('tensors', models.PositiveIntegerField()),
                ('differing', models.PositiveIntegerField()),
                ('differences', models.JSONField(default=list)),
                ('because', models.TextField(blank=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('attempt', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='jobs.attempt')),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='jobs.job')),
                ('replayed', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='jobs.job')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.team')),
            ],
        ),
        migrations.AddConstraint(
            model_name='replayedsegment',
            constraint=models.UniqueConstraint(fields=('job', 'number'), name='one_result_of_a_segment_per_replay'),
        ),
        tenancy.protect("artifacts_replayedsegment"),
    ]
