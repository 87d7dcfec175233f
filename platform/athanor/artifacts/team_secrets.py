"""Secrets of a team, such as a token for a hub: written once, read by nobody but the attempts of jobs that name them.

Values are sealed with the team's key. No selector or view gives one out; `delivered` is called by the agent API alone.
"""

from collections.abc import Iterable

from django.db import transaction
from django.db.models import QuerySet

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.accounts.selectors import Principal
from athanor.artifacts import keys
from athanor.artifacts.models import TeamSecret
from athanor.core import encryption
from athanor.core.errors import NotFound
from athanor.jobs.models import Job


def put(team: Team, name: str, value: str, user: User) -> tuple[TeamSecret, bool]:
    """Store or replace. Attempts that run keep the value they were given. The second is True for a new secret."""
    with transaction.atomic():
        wrapped = encryption.wrap(keys.locked_team_keyset(team), value, owner_of(team.id, name))
        row, created = TeamSecret.objects.update_or_create(
            team=team, name=name, defaults={"wrapped": wrapped, "updated_by": user}
        )
        action = "secret.create" if created else "secret.replace"
        audit.record(action, actor=user, target=("secret", row.id), team_id=team.id, after={"name": name})
    return row, created


def delete(row: TeamSecret, user: User) -> None:
    """Attempts that run keep it; one that starts later goes without, as if its variable were unset."""
    with transaction.atomic():
        name, identifier = row.name, row.id
        TeamSecret.objects.filter(pk=identifier).delete()
        audit.record(
            "secret.delete", actor=user, target=("secret", identifier), team_id=row.team_id, before={"name": name}
        )


def secrets_of(team: Team) -> QuerySet[TeamSecret]:
    return TeamSecret.objects.filter(team=team).select_related("updated_by").order_by("name")


def secret_of(who: Principal, secret_id: str) -> TeamSecret:
    row = TeamSecret.objects.filter(pk=secret_id, team_id__in=who.team_ids).first()
    if row is None:
        raise NotFound("secret", secret_id)
    return row


def missing(team: Team, names: Iterable[str]) -> list[str]:
    """Those of `names` that the team has not."""
    known = set(TeamSecret.objects.filter(team=team).values_list("name", flat=True))
    return [name for name in names if name not in known]


def delivered(job: Job) -> dict[str, str]:
    """The values of the secrets that the job names, for its attempt; those that are gone by now are left out."""
    names = job.resolved_spec.get("secrets", [])
    if not names:
        return {}
    rows = TeamSecret.objects.filter(team_id=job.team_id, name__in=names).annotate(team_wrapped=keys.TEAM_WRAPPED)
    return {row.name: keys.opened(row, owner_of(row.team_id, row.name)) for row in rows}


def owner_of(team_id: str, name: str) -> str:
    """What a sealed value is bound to: moved to another team or name, it does not open."""
    return f"secret:{team_id}:{name}"
