"""`manage.py verify_backup PLACE`: read a backup completely and compare it with its manifest."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from athanor.backups.destination import open_destination
from athanor.backups.manifest import open_backup
from athanor.backups.verify import problems_of
from athanor.config.management.errors import as_command_errors


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = (
        "Read every file and object of a backup, and check them against its authenticated manifest. Needs the master "
        "key and no database. Fails, and names them, if any is missing or damaged."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments."""
        parser.add_argument("place", help="a folder, or s3://BUCKET/PREFIX")
        parser.add_argument("--backup", default="", metavar="ID", help="default: the newest one")

    def handle(self, *args: Any, place: str, backup: str, **options: Any) -> None:
        """Run the command."""
        with as_command_errors():
            opened = open_backup(open_destination(place), backup)
            problems = list(problems_of(opened))
        manifest = opened.manifest
        for each in manifest.missing:
            self.stdout.write(f"not in the backup, since it could not be copied: {each.key}: {each.problem}")
        for problem in problems:
            self.stderr.write(problem)
        if problems:
            raise CommandError(
                f"{manifest.id} is damaged in {len(problems)} places: put these files back from another copy of the "
                "backup; after damaged objects are deleted here, the next backup copies them again"
            )
        self.stdout.write(
            f"{manifest.id} of {manifest.created_at:%Y-%m-%d %H:%M:%S} UTC is intact: version {manifest.version}, "
            f"{sum(table.rows for table in manifest.tables)} rows of {len(manifest.tables)} tables, "
            f"{manifest.num_objects} objects ({manifest.object_bytes} bytes)"
        )
