from django.db import migrations, models

# Chunks of the version before stay as they are and are read as loose ends; folding.py moves them into series and larger
# chunks bit by bit, while the platform runs.
SEGMENTS = """
INSERT INTO telemetry_metricsegment (attempt_id, generation, first_step)
SELECT DISTINCT ON (attempt_id, generation) attempt_id, generation, first_step
FROM telemetry_metricchunk ORDER BY attempt_id, generation, id
"""
LAST_LINES = "UPDATE telemetry_logchunk SET last_line = first_line + count - 1"
LOOSE = """
UPDATE telemetry_progress AS progress SET
  loose_rows = coalesce((SELECT sum(chunk.count) FROM telemetry_metricchunk AS chunk
    JOIN jobs_attempt AS attempt ON attempt.id = chunk.attempt_id WHERE attempt.job_id = progress.job_id), 0),
  loose_lines = coalesce((SELECT sum(chunk.count) FROM telemetry_logchunk AS chunk
    JOIN jobs_attempt AS attempt ON attempt.id = chunk.attempt_id WHERE attempt.job_id = progress.job_id), 0)
"""
# The contents are compressed already: the database need not try. A signature is looked at in every row of a search.
STORAGE = """
ALTER TABLE telemetry_metricblock ALTER COLUMN content SET STORAGE EXTERNAL;
ALTER TABLE telemetry_metricseries ALTER COLUMN tail SET STORAGE EXTERNAL;
ALTER TABLE telemetry_metricchunk ALTER COLUMN content SET STORAGE EXTERNAL;
ALTER TABLE telemetry_logchunk ALTER COLUMN content SET STORAGE EXTERNAL;
ALTER TABLE telemetry_logchunk ALTER COLUMN signature SET STORAGE PLAIN;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('telemetry', '0003_series_in_blocks'),
    ]

    operations = [
        migrations.RunSQL(STORAGE, migrations.RunSQL.noop),
        migrations.RunSQL(LAST_LINES, migrations.RunSQL.noop),
        migrations.AlterField(model_name='logchunk', name='last_line', field=models.BigIntegerField()),
        migrations.RunSQL(SEGMENTS, migrations.RunSQL.noop),
        migrations.RunSQL(LOOSE, migrations.RunSQL.noop),
    ]
