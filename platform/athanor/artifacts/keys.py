"""Data keys: one per owner (job, data set or imported model), wrapped by the team's key, wrapped by the master key.

A wrapped key and the key above it are read in one statement, so that they always match, also while a rotation replaces
both. New values are wrapped under the lock of the team key's row, which the end of a rotation takes too.
"""

from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import OuterRef, Subquery

from athanor.accounts.models import Team
from athanor.artifacts.models import Artifact, Checkpoint, DataKey, GrantedKey, TeamKey
from athanor.core import encryption
from athanor.core.errors import Gone
from trainer.contract.encryption import Encryptor, new_keyset

TEAM_WRAPPED = Subquery(TeamKey.objects.filter(team_id=OuterRef("team_id")).values("wrapped")[:1])


def data_key(owner: str, team: Team) -> str:
    """Return the owner's keyset; create it on first use. Concurrent callers get the same one."""
    found = _data_key(owner)
    if found is None:
        with transaction.atomic():
            wrapped = encryption.wrap(locked_team_keyset(team), new_keyset(), owner)
            DataKey.objects.get_or_create(owner=owner, defaults={"team": team, "wrapped": wrapped})
        found = _data_key(owner)
    assert found is not None
    return found


def encryptor(owner: str, team: Team) -> Encryptor:
    """Return the cipher of an owner's data key."""
    return Encryptor(data_key(owner, team))


def data_key_of(row: Checkpoint | Artifact) -> str:
    """Return the keyset of a checkpoint or artifact: its own, or, of a shared one, the copy for the reading team."""
    if row.granted is not None:
        return opened(row.granted, granted_owner(row.granted))
    return data_key(row.key_owner, row.owner)


def encryptor_of(row: Checkpoint | Artifact) -> Encryptor:
    """Return the cipher of a checkpoint or artifact."""
    return Encryptor(data_key_of(row))


def granted_owner(row: GrantedKey) -> str:
    """Return the associated data of a granted key: moved to another grant or version, it does not decrypt."""
    return f"granted-key:{row.grant_id}:{row.version_id}"


def locked_team_keyset(team: Team) -> str:
    """Return the team's keyset for wrapping, locked in the caller's transaction; create it on first use.

    Raise Gone for a deleted team.
    """
    if Team.objects.filter(pk=team.pk).exclude(deleted_at=None).exists():
        raise Gone("team_deleted", f"team {team.name} is deleted", remedy="nothing new is stored for it")
    create_team_key(team)
    row = TeamKey.objects.select_for_update(no_key=True).get(team=team)
    return encryption.unwrap_by_master(row.wrapped, team.id)


def create_team_key(team: Team) -> None:
    """Create the team's key if it has none."""
    if not TeamKey.objects.filter(team=team).exists():
        wrapped = encryption.wrap_by_master(encryption.new_wrapping_keyset(), team.id)
        TeamKey.objects.get_or_create(team=team, defaults={"wrapped": wrapped})


def locked_team_keysets(team_ids: Iterable[str]) -> dict[str, str]:
    """Return the keysets of several teams for wrapping, locked in the caller's transaction, without teams that have
    none. The order of the locks is the same for all callers, so that none waits for another in a circle."""
    rows = TeamKey.objects.select_for_update(no_key=True).filter(team_id__in=list(team_ids)).order_by("pk")
    return {row.team_id: encryption.unwrap_by_master(row.wrapped, row.team_id) for row in rows}


def opened(row: Any, owner: str) -> str:
    """Return the decrypted value of `owner` in a row that was read with `team_wrapped=TEAM_WRAPPED`."""
    return encryption.unwrap(encryption.unwrap_by_master(row.team_wrapped, row.team_id), row.wrapped, owner)


def destroy(owner: str) -> None:
    """Destroy the key of an owner with no stored objects, so that no copy of them can be read."""
    DataKey.objects.filter(owner=owner).delete()


def _data_key(owner: str) -> str | None:
    row = DataKey.objects.filter(owner=owner).annotate(team_wrapped=TEAM_WRAPPED).first()
    return opened(row, owner) if row else None
