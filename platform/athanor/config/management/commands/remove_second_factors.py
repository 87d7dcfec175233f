"""`manage.py remove_second_factors USERNAME`: for a user who lost them."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from athanor.accounts import second_factors
from athanor.accounts.models import User
from athanor.core.errors import Conflict

ACTOR = "operator"


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = (
        "Remove all second factors of a user who lost theirs, and end the user's sessions. The next sign-in needs the "
        "password alone. Recorded in the audit trail."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments."""
        parser.add_argument("username")

    def handle(self, *args: Any, username: str, **options: Any) -> None:
        """Run the command."""
        user = User.objects.filter(username=username).first()
        if user is None:
            raise CommandError(f"there is no user {username!r}: give the name with which they sign in")
        try:
            kinds = second_factors.remove_all(user, ACTOR)
        except Conflict as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"removed of {username}: {', '.join(kinds)}")
