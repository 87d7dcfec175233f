from typing import Any

from django.core.management.base import BaseCommand

from athanor.core.encryption import new_wrapping_keyset


class Command(BaseCommand):
    help = "Print a new master key for ATHANOR_MASTER_KEY. Keep it: without it nothing stored can be read."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(new_wrapping_keyset())
