"""`manage.py prepare`: bring an installation's stores up to date, before its programs start."""

import time
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, connection

from athanor.artifacts.storage import ensure_bucket
from athanor.core.errors import Unavailable

POLL_SECONDS = 1.0


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = (
        "Wait for the database and the object store, apply migrations, and make the bucket, the first administrator, "
        "team and cluster where they are missing. Changes nothing that is there, so that it can run at each start."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments."""
        parser.add_argument("--wait", type=float, default=120.0, metavar="SECONDS", help="for stores that start")
        parser.add_argument(
            "--no-local-cluster", action="store_true", help="for workers that are not to run jobs on their own machine"
        )

    def handle(self, *args: Any, wait: float, no_local_cluster: bool, **options: Any) -> None:
        """Run the command."""
        deadline = time.monotonic() + wait
        while True:
            try:
                connection.ensure_connection()
                ensure_bucket()
                break
            except (OperationalError, Unavailable) as error:
                if time.monotonic() > deadline:
                    raise CommandError(f"a store has not answered for {wait:.0f} s: {error}") from error
                time.sleep(POLL_SECONDS)  # between two questions to a store that starts
        call_command("migrate", interactive=False, skip_checks=False)  # refuses a database of newer code
        call_command("bootstrap", only_missing=True, no_local_cluster=no_local_cluster)
