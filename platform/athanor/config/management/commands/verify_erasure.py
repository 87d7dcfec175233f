"""`manage.py verify_erasure FILE`: check a certificate of erasure."""

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from athanor.compliance import certificates


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = "Check a certificate of erasure (athanor trash certificate) with the master key. Needs no database."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments."""
        parser.add_argument("file", help="the certificate, as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command."""
        path = Path(options["file"])
        try:
            document = json.loads(path.read_text())
        except ValueError as error:
            raise CommandError(f"{path} is no JSON document: {error}") from error
        for problem in certificates.verify(document):
            raise CommandError(f"{path} is no genuine certificate: {problem}")
        team, keys = document["team"], document["keys"]
        self.stdout.write(
            f"{path} is genuine: team {team['name']} ({team['id']}) was erased at {document['completed_at']}; "
            f"{sum(each['count'] for each in keys.values())} keys and secrets destroyed at "
            f"{document['keys_destroyed_at']}, {document['objects']['count']} objects deleted "
            f"({document['objects']['bytes']} bytes); record {document['audit']['seq']} of the audit trail"
        )
