"""`manage.py generate_master_key`: print a new master key."""

from typing import Any

from django.core.management.base import BaseCommand

from athanor.core.encryption import new_wrapping_keyset


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = "Print a new master key for ATHANOR_MASTER_KEY. Keep it: without it nothing stored can be read."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command."""
        self.stdout.write(new_wrapping_keyset())
