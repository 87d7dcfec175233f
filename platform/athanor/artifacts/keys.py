"""Data keys: one per owner (job or data set), wrapped by the team's key, wrapped by the master key."""

from django.db import transaction

from athanor.accounts.models import Team
from athanor.artifacts.models import DataKey, TeamKey
from athanor.core import encryption
from trainer.contract import sealing


def data_key(owner: str, team: Team) -> str:
    """The owner's keyset, made when first asked for. Under any concurrency there is one."""
    row = DataKey.objects.filter(owner=owner).first()
    if row is None:
        wrapped = encryption.wrap(_team_key(team), sealing.new_keyset(), owner)
        row, _ = DataKey.objects.get_or_create(owner=owner, defaults={"team": team, "wrapped": wrapped})
    return encryption.unwrap(_team_key(row.team), row.wrapped, owner)


def sealer(owner: str, team: Team) -> sealing.Sealer:
    return sealing.Sealer(data_key(owner, team))


def _team_key(team: Team) -> str:
    row = TeamKey.objects.filter(team=team).first()
    if row is None:
        wrapped = encryption.wrap(encryption.master_keyset(), encryption.new_wrapping_keyset(), team.id)
        with transaction.atomic():
            row, _ = TeamKey.objects.get_or_create(team=team, defaults={"wrapped": wrapped})
    return encryption.unwrap(encryption.master_keyset(), row.wrapped, team.id)
