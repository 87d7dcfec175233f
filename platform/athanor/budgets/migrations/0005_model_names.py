import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Rename the model of a pool's pricing facts. Its table keeps its name."""

    dependencies = [
        ("budgets", "0004_series_asked_at"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameModel("PoolTerms", "PoolPricing"),
                migrations.AlterModelTable("PoolPricing", "budgets_poolterms"),
                migrations.AlterField(
                    "PoolPricing",
                    "pool",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="pricing",
                        serialize=False,
                        to="clusters.pool",
                    ),
                ),
            ],
        ),
    ]
