"""`manage.py restore PLACE`: restore a backup into an empty database and bucket."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from athanor.artifacts import storage
from athanor.backups.destination import open_destination
from athanor.backups.manifest import open_backup
from athanor.backups.restore import restore
from athanor.config.management.errors import as_command_errors


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = (
        "Restore a backup into an empty database and an empty bucket, before the platform's programs start. One that "
        "was interrupted continues when it is run again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments."""
        parser.add_argument("place", help="a folder, or s3://BUCKET/PREFIX")
        parser.add_argument("--backup", default="", metavar="ID", help="default: the newest one")
        parser.add_argument(
            "--without-damaged", action="store_true", help="leave out objects that are missing or damaged in the backup"
        )

    def handle(self, *args: Any, place: str, backup: str, without_damaged: bool, **options: Any) -> None:
        """Run the command."""
        with as_command_errors():
            opened = open_backup(open_destination(place), backup)
            problems = restore(opened, self.stdout.write, without_damaged=without_damaged)
        manifest = opened.manifest
        for problem in problems:
            self.stdout.write(f"left out: {problem}")
        for each in manifest.missing:
            self.stdout.write(f"not in the backup, since it could not be copied: {each.key}: {each.problem}")
        self.stdout.write(
            f"{manifest.id} is restored: the state of {manifest.created_at:%Y-%m-%d %H:%M:%S} UTC, objects in the "
            f"bucket {storage.bucket()}. Start the programs now"
        )
