import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from athanor.core import tenancy

# A row of the model's team, in the tables that refer to the model: `through` would let those write who may read it.
OF_THE_OWNER = (
    "athanor_sees_all() OR EXISTS (SELECT 1 FROM artifacts_registeredmodel parent"
    " WHERE parent.id = {table}.model_id AND athanor_sees(parent.team_id))"
)
OF_A_READER = (
    "EXISTS (SELECT 1 FROM artifacts_modelgrant granted"
    " WHERE granted.model_id = {table}.{column} AND athanor_sees(granted.team_id))"
)


def written_by_the_owner(table: str) -> migrations.RunSQL:
    """Return the operation that lets the model's team write the rows, and the teams with a grant read them."""
    before = (
        f"athanor_sees_all() OR EXISTS (SELECT 1 FROM artifacts_registeredmodel parent"
        f" WHERE parent.id = {table}.model_id)"
    )
    return migrations.RunSQL(
        f"ALTER POLICY of_a_team ON {table} USING ({OF_THE_OWNER.format(table=table)});",
        f"ALTER POLICY of_a_team ON {table} USING ({before});",
    )


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0017_team_requires_data_report'),
        ('artifacts', '0024_data_reports'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='ModelGrant',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('granted_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('model', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='grants', to='artifacts.registeredmodel')),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.team')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.team')),
            ],
        ),
        migrations.CreateModel(
            name='GrantedKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('wrapped', models.BinaryField()),
                ('grant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='keys', to='artifacts.modelgrant')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.team')),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='artifacts.modelversion')),
            ],
        ),
        migrations.AddConstraint(
            model_name='modelgrant',
            constraint=models.UniqueConstraint(fields=('model', 'team'), name='one_grant_of_a_model_per_team'),
        ),
        migrations.AddConstraint(
            model_name='grantedkey',
            constraint=models.UniqueConstraint(fields=('grant', 'version'), name='one_key_of_a_version_per_grant'),
        ),
        tenancy.protect("artifacts_modelgrant", "athanor_sees(owner_id)"),
        tenancy.readable("artifacts_modelgrant", "athanor_sees(team_id)"),
        tenancy.protect(
            "artifacts_grantedkey",
            "athanor_sees_all() OR EXISTS (SELECT 1 FROM artifacts_modelgrant granted"
            " WHERE granted.id = artifacts_grantedkey.grant_id AND athanor_sees(granted.owner_id))",
        ),
        tenancy.readable("artifacts_grantedkey", "athanor_sees(team_id)"),
        tenancy.readable(
            "artifacts_registeredmodel", OF_A_READER.format(table="artifacts_registeredmodel", column="id")
        ),
        written_by_the_owner("artifacts_modelversion"),
        tenancy.readable(
            "artifacts_modelversion", OF_A_READER.format(table="artifacts_modelversion", column="model_id")
        ),
        written_by_the_owner("artifacts_modelalias"),
        tenancy.readable("artifacts_modelalias", OF_A_READER.format(table="artifacts_modelalias", column="model_id")),
        tenancy.readable(
            "artifacts_artifact",
            "EXISTS (SELECT 1 FROM artifacts_modelversion version JOIN artifacts_modelgrant granted"
            " ON granted.model_id = version.model_id"
            " WHERE version.artifact_id = artifacts_artifact.id AND athanor_sees(granted.team_id))",
        ),
    ]
