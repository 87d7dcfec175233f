"""`manage.py generate_secrets`: print the secrets of a new installation."""

import secrets
from typing import Any

from django.core.management.base import BaseCommand

from athanor.core.encryption import new_wrapping_keyset

PASSWORDS = (
    "ATHANOR_SECRET_KEY",
    "ATHANOR_S3_SECRET_KEY",
    "ATHANOR_BOOTSTRAP_PASSWORD",
    "DATABASE_PASSWORD",
    "DATABASE_MIGRATION_PASSWORD",
    "DATABASE_OWNER_PASSWORD",
    "STORE_SIGNING_KEY",
    "VALKEY_PASSWORD",
)


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = (
        "Print the secrets of a new installation, one NAME=value a line, as deploy/compose.yaml reads them. Keep them: "
        "without ATHANOR_MASTER_KEY nothing stored can be read."
    )
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command."""
        for name in PASSWORDS:
            self.stdout.write(f"{name}={secrets.token_hex(24)}")
        self.stdout.write(f"ATHANOR_MASTER_KEY={new_wrapping_keyset()}")
