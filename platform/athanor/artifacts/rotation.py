"""Rotation of the keys above the data keys, while jobs run.

Data keys themselves do not change, so no stored object is encrypted again. Each step commits by itself and is visible
in the rows (core/encryption.py), so an interrupted rotation continues when it is started again, and two in parallel are
safe.
"""

from collections.abc import Callable
from typing import Any

from django.db import models, transaction

from athanor.accounts import audit, idempotency, second_factors, sign_on_checks
from athanor.accounts.models import Team
from athanor.artifacts import keys, signing_keys, team_secrets
from athanor.artifacts.models import DataKey, GrantedKey, SigningKey, TeamKey, TeamSecret
from athanor.core import encryption
from athanor.core.errors import Misconfigured

ACTOR = "operator"  # a person who can run commands on the platform's machine

# What a team's key wraps, and what each row's wrapping is bound to.
WRAPPED: dict[type[models.Model], Callable[[Any], str]] = {
    DataKey: lambda row: str(row.owner),
    TeamSecret: lambda row: team_secrets.owner_of(row.team_id, row.name),
    SigningKey: signing_keys.owner_of,
    GrantedKey: keys.granted_owner,
}


def register(model: type[models.Model], owner_of: Callable[[Any], str]) -> None:
    """Register a table with `team` and `wrapped`, for apps above this one, when they start."""
    WRAPPED[model] = owner_of


def rotate_master() -> int:
    """Encrypt with ATHANOR_MASTER_KEY every secret that ATHANOR_PREVIOUS_MASTER_KEY still encrypts.

    Return how many: keys, second factors and refresh tokens. Raise Misconfigured if neither key decrypts one; those
    before it are done.
    """
    done = 0
    for team_id in TeamKey.objects.order_by("pk").values_list("pk", flat=True):
        with transaction.atomic():
            row = TeamKey.objects.select_for_update(no_key=True).get(pk=team_id)
            if encryption.is_wrapped_by(encryption.master_keyset(), row.wrapped):
                continue
            row.wrapped = encryption.wrap_by_master(encryption.unwrap_by_master(row.wrapped, team_id), team_id)
            row.save(update_fields=["wrapped"])
            audit.record("key.rotate_master", actor=ACTOR, target=("team_key", team_id), team_id=team_id)
            done += 1
    idempotency.rewrap()
    return done + int(audit.rewrap_key()) + second_factors.rewrap() + sign_on_checks.rewrap()


def require_master_key() -> None:
    """Raise Misconfigured if neither ATHANOR_MASTER_KEY nor ATHANOR_PREVIOUS_MASTER_KEY decrypts the teams' keys.

    Looks at the newest one: all were encrypted with the same master key, or with the one before during a rotation.
    """
    newest = TeamKey.objects.order_by("-pk").values_list("pk", "wrapped").first()
    if newest is not None:
        team_id, wrapped = newest
        encryption.unwrap_by_master(wrapped, team_id)


def rotate_team(team: Team) -> int:
    """Replace a team's key and wrap its data keys, secrets and signing keys with the new one. Return how many rows."""
    keyset = _begin(team)
    if keyset is None:
        return 0
    done = sum(_rewrap(keyset, team, model, owner_of) for model, owner_of in WRAPPED.items())
    return done + _end(team)


def _begin(team: Team) -> str | None:
    """Return the keyset with both keys, that of an unfinished rotation if there is one; None without a team key."""
    with transaction.atomic():
        row = TeamKey.objects.select_for_update(no_key=True).filter(team=team).first()
        if row is None:
            return None
        keyset = encryption.unwrap_by_master(row.wrapped, team.id)
        if encryption.is_single(keyset):
            keyset = encryption.with_new_primary(keyset)
            row.wrapped = encryption.wrap_by_master(keyset, team.id)
            row.save(update_fields=["wrapped"])
            audit.record("key.rotate_team.begin", actor=ACTOR, target=("team_key", team.id), team_id=team.id)
        return keyset


def _rewrap(keyset: str, team: Team, model: type[models.Model], owner_of: Callable[[Any], str]) -> int:
    done = 0
    for row in model._default_manager.filter(team=team).order_by("pk").iterator(chunk_size=500):
        wrapped: Any = row.wrapped  # type: ignore[attr-defined] # every model in WRAPPED has it
        if encryption.is_wrapped_by(keyset, wrapped):
            continue
        owner = owner_of(row)
        again = encryption.wrap(keyset, encryption.unwrap(keyset, wrapped, owner), owner)
        # A secret that was replaced meanwhile is wrapped by the new key already and must not be put back.
        done += model._default_manager.filter(pk=row.pk, wrapped=wrapped).update(wrapped=again)
    return done


def _end(team: Team) -> int:
    """Drop the old key when nothing needs it, under the lock of wrapping, so that nothing is added meanwhile."""
    with transaction.atomic():
        row = TeamKey.objects.select_for_update(no_key=True).get(team=team)
        keyset = encryption.unwrap_by_master(row.wrapped, team.id)
        late = sum(_rewrap(keyset, team, model, owner_of) for model, owner_of in WRAPPED.items())
        for model in WRAPPED:
            for wrapped in model._default_manager.filter(team=team).values_list("wrapped", flat=True):
                if not encryption.is_wrapped_by(keyset, wrapped):
                    raise Misconfigured("rotation_unfinished", "a row still needs the old key", remedy="run it again")
        if not encryption.is_single(keyset):
            row.wrapped = encryption.wrap_by_master(encryption.only_primary(keyset), team.id)
            row.save(update_fields=["wrapped"])
            audit.record("key.rotate_team.end", actor=ACTOR, target=("team_key", team.id), team_id=team.id)
        return late
