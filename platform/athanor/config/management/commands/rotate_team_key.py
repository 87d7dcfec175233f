"""`manage.py rotate_team_key TEAM`: replace a team's key."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from athanor.accounts.models import Team
from athanor.artifacts import rotation
from athanor.core.errors import Misconfigured


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = "Replace a team's key while its jobs run. May be broken off and run again."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments."""
        parser.add_argument("team", help="the team's name")

    def handle(self, *args: Any, team: str, **options: Any) -> None:
        """Run the command."""
        row = Team.objects.filter(name=team).first()
        if row is None:
            raise CommandError(f"there is no team {team!r}")
        try:
            done = rotation.rotate_team(row)
        except Misconfigured as error:
            raise CommandError(f"{error.message}: {error.remedy}") from error
        self.stdout.write(f"{done} keys and secrets of team {team} are wrapped by its new key now; the old one is gone")
