"""`manage.py backup PLACE`: back up the database and the objects that it refers to."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from athanor.backups import tables
from athanor.backups.create import create
from athanor.backups.destination import open_destination
from athanor.config.management.errors import as_command_errors


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = (
        "Back up one state of the database, and the objects that it refers to, while the platform works. Objects that "
        "an earlier backup at the same place has are not copied again. Fails if an object could not be copied."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments."""
        parser.add_argument("place", help="a folder, or s3://BUCKET/PREFIX in another bucket of the object store")
        parser.add_argument("--keep", type=int, metavar="N", help="delete older backups than the newest N afterwards")

    def handle(self, *args: Any, place: str, keep: int | None, **options: Any) -> None:
        """Run the command."""
        if keep is not None and keep < 1:
            raise CommandError(f"--keep {keep}: at least the new backup stays; give 1 or more")
        with as_command_errors():
            made = create(open_destination(place), self.stdout.write, keep=keep)
        manifest = made.manifest
        self.stdout.write(
            f"{manifest.id} is complete: {sum(table.rows for table in manifest.tables)} rows of {len(manifest.tables)} "
            f"tables, {manifest.num_objects} objects ({manifest.object_bytes} bytes), of which {made.copied} "
            f"({made.copied_bytes} bytes) were copied now"
        )
        if made.removed:
            self.stdout.write(f"deleted: {', '.join(made.removed)}")
        if others := tables.other_tables():
            self.stdout.write(f"not in the backup, since they are not the platform's tables: {', '.join(others)}")
        for each in manifest.missing:
            self.stderr.write(f"{each.key}: {each.problem}")
        if manifest.missing:
            raise CommandError(
                f"{manifest.id} is complete but for {len(manifest.missing)} objects that the database refers to; "
                "restore them in the object store, or delete what needs them, and make another backup"
            )
