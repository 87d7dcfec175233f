"""Statements that a connection has prepared survive an upgrade that adds columns while the web runs."""

import pytest
from django.conf import settings
from django.db import connection

from athanor.accounts.models import Team
from athanor.artifacts import datasets
from athanor.artifacts.models import Dataset
from athanor.clusters.models import Cluster, Pool
from athanor.clusters.selectors import pool_for
from athanor.quotas import selectors
from tests.control_plane.roles import as_owner

pytestmark = pytest.mark.django_db
TABLES = ("quotas_quotanode", "clusters_pool", "artifacts_dataset", "accounts_team")


def test_hand_written_statements_name_their_columns() -> None:
    """PostgreSQL refuses a prepared `SELECT *` ("cached plan must not change result type") once a column was added."""
    team = Team.objects.create(name="prepared")
    cluster = Cluster.objects.create(name="prepared", kind="fake", config={})
    Pool.objects.create(cluster=cluster, name="cpu", slots_per_node=2, memory_bytes=1 << 30)
    Dataset.objects.create(team=team, name="builtin:python-stdlib", origin=Dataset.Origin.BUILTIN)

    def use() -> None:
        path = selectors.path_of_team(team)
        assert pool_for("prepared", "cpu").cluster.name == "prepared"
        assert datasets.resolve(team, "builtin:python-stdlib").name == "builtin:python-stdlib"
        assert all(isinstance(team_id, str) for node in path for team_id in selectors.teams_below(node.id))

    for _ in range(settings.DATABASES["default"]["OPTIONS"]["prepare_threshold"] + 2):
        use()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%%clusters_pool pool%%'")
        assert cursor.fetchone()[0] == 1, "the statement is not prepared, so this test shows nothing"
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # their checks would hold up the changes
        with as_owner():
            for table in TABLES:
                # In a block of code, or psycopg would notice and prepare again, as it does not for another session's.
                cursor.execute(f"DO $$ BEGIN ALTER TABLE {table} ADD COLUMN added_by_an_upgrade integer; END $$")
    use()
