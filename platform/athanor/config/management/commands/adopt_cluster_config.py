"""`manage.py adopt_cluster_config NAME`: move the server's part of a cluster's configuration to its file."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from athanor.accounts import audit
from athanor.clusters import server_config
from athanor.clusters.models import Cluster


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = (
        "Move the commands, paths and addresses of a cluster that was registered before they became the server's own "
        "from the database into NAME.cluster.json of ATHANOR_CLUSTER_CONFIG_DIR. Read what it prints "
        "first (--dry-run): the user who registered the cluster over HTTP chose these values."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments."""
        parser.add_argument("name")
        parser.add_argument("--dry-run", action="store_true", help="only print what would be moved")

    def handle(self, *args: Any, name: str, dry_run: bool, **options: Any) -> None:
        """Run the command."""
        with transaction.atomic():
            row = Cluster.objects.select_for_update(no_key=True).filter(name=name).first()
            if row is None:
                names = ", ".join(Cluster.objects.order_by("name").values_list("name", flat=True)) or "none"
                raise CommandError(f"there is no cluster {name!r}; there are: {names}")
            open_part, server_part = server_config.split(row.kind, row.config)
            self.stdout.write(json.dumps({"kind": row.kind, "config": server_part}, indent=2))
            if not server_part:
                self.stdout.write(f"{name} holds nothing that belongs to the server")
                return
            if dry_run:
                return
            before, row.config = row.config, open_part
            row.save(update_fields=["config"])
            facts = [{"config": json.dumps(each, sort_keys=True)} for each in (before, open_part)]
            audit.record(
                "cluster.adopt_config", actor="manage.py", target=("cluster", row.id), before=facts[0], after=facts[1]
            )
            try:
                path = server_config.write(name, row.kind, server_part)
            except FileExistsError as error:
                raise CommandError(
                    f"{server_config.server_file(name)} exists: add these fields to it by hand"
                ) from error
        self.stdout.write(f"moved to {path}")
