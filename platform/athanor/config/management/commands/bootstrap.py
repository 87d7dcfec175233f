"""`manage.py bootstrap`: create what a new installation needs."""

import json
import os
from typing import Any

import psutil
from django.core.management.base import BaseCommand, CommandParser

from athanor.accounts.models import ApiToken, Membership, Role, Team, User
from athanor.accounts.roles import PlatformRole
from athanor.accounts.services import issue_token, revoke_token
from athanor.artifacts.storage import ensure_bucket
from athanor.clusters.models import Cluster, Pool
from athanor.config.env import BOOTSTRAP_PASSWORD, read_secret

TOKEN_NAME = "bootstrap"  # noqa: S105 - a name, not a secret


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = "Make the bucket, the first administrator, a team with a token, and this machine's cluster. Idempotent."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments."""
        parser.add_argument("--username", default="admin")
        parser.add_argument("--team", default="demo")
        parser.add_argument(
            "--only-missing", action="store_true", help="change nothing that is there, and make no token"
        )
        parser.add_argument(
            "--no-local-cluster", action="store_true", help="make no cluster for jobs on the machine of the worker"
        )

    def handle(
        self, *args: Any, username: str, team: str, only_missing: bool, no_local_cluster: bool, **options: Any
    ) -> None:
        """Run the command."""
        ensure_bucket()
        powers = {"is_staff": True, "is_superuser": True, "platform_role": PlatformRole.PLATFORM_ADMIN.value}
        user, created = User.objects.get_or_create(username=username, defaults=powers)
        password = read_secret(BOOTSTRAP_PASSWORD)
        if created and not password:
            self.stderr.write(f"{BOOTSTRAP_PASSWORD} is not set; {username} cannot sign in to the dashboard yet")
        if password and (created or not only_missing) and not user.check_password(password):
            user.set_password(password)
            user.save()
        team_row, _ = Team.objects.get_or_create(name=team)
        Membership.objects.get_or_create(user=user, team=team_row, defaults={"role": Role.ADMIN})
        if not no_local_cluster:
            self._this_machine(only_missing)
        if only_missing:
            self.stdout.write(f"administrator {username} and team {team}: {'made' if created else 'there'}")
            return
        # Only digests of tokens are kept, so running this again cannot show the old one.
        for old in ApiToken.objects.filter(user=user, team=team_row, name=TOKEN_NAME, revoked_at__isnull=True):
            revoke_token(user, old.id)
        _, token = issue_token(user, team_row, TOKEN_NAME)
        self.stdout.write(
            json.dumps({"username": username, "password": password, "team": team_row.name, "token": token})
        )

    def _this_machine(self, only_missing: bool) -> None:
        cluster, _ = Cluster.objects.get_or_create(name="local", defaults={"kind": "local"})
        if only_missing and Pool.objects.filter(cluster=cluster, name="cpu").exists():
            return
        machine = {
            "accelerator": "cpu",
            "slots_per_node": len(os.sched_getaffinity(0)),
            "memory_bytes": psutil.virtual_memory().total,
        }
        Pool.objects.update_or_create(cluster=cluster, name="cpu", defaults=machine)
