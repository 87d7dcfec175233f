"""`manage.py rotate_master_key`: replace the master key."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from athanor.artifacts import rotation
from athanor.core import encryption
from athanor.core.errors import Misconfigured


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = (
        "Replace the master key while jobs run: start all processes with the new key in ATHANOR_MASTER_KEY and the old "
        "one in ATHANOR_PREVIOUS_MASTER_KEY, run this, then take ATHANOR_PREVIOUS_MASTER_KEY away. May be broken off "
        "and run again."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command."""
        if not encryption.previous_master_keyset():
            raise CommandError("ATHANOR_PREVIOUS_MASTER_KEY is not set: put the old key there, the new one in "
                               "ATHANOR_MASTER_KEY, restart the platform's processes, and run this again")  # fmt: skip
        try:
            done = rotation.rotate_master()
        except Misconfigured as error:
            raise CommandError(f"{error.message}: {error.remedy}") from error
        self.stdout.write(f"{done} keys are wrapped by the new master key now; ATHANOR_PREVIOUS_MASTER_KEY can go")
