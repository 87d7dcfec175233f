import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Rename models and their reverse relations. Their tables keep their names."""

    dependencies = [
        ("clusters", "0004_released_nodes"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameModel("Survey", "InventorySync"),
                migrations.AlterModelTable("InventorySync", "clusters_survey"),
                migrations.AlterField(
                    "InventorySync",
                    "cluster",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="inventory_sync",
                        serialize=False,
                        to="clusters.cluster",
                    ),
                ),
                migrations.RenameModel("ClusterProbe", "ClusterHealthCheck"),
                migrations.AlterModelTable("ClusterHealthCheck", "clusters_clusterprobe"),
                migrations.AlterField(
                    "ClusterHealthCheck",
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="health_checks",
                        to="clusters.cluster",
                    ),
                ),
            ],
        ),
    ]
