"""Read access to a registered model, which its team grants to other teams.

A grant covers all versions, also later ones. For each version and grant, the data key of the version's files is wrapped
once more, by the key of the team that may read it (GrantedKey). A session of that team opens it with its own key;
row-level security lets it read the rows of the model and the artifact, and no row or key of the job. The wrapped copies
are deleted with the grant, the version, and the keys of either team (compliance/erasure.py), and rotated with the key
of the team that reads (artifacts/rotation.py).
"""

from collections.abc import Collection, Iterable

from django.db import transaction
from django.db.models import Q, QuerySet

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.artifacts import keys
from athanor.artifacts.models import Artifact, GrantedKey, ModelGrant, ModelVersion, RegisteredModel
from athanor.core import encryption, tenancy
from athanor.core.errors import Gone, Invalid, NotFound


def grants_of(model: RegisteredModel) -> QuerySet[ModelGrant]:
    """Return the grants of a model, by the name of the team."""
    return ModelGrant.objects.filter(model=model).select_related("team", "granted_by").order_by("team__name")


def grant(model: RegisteredModel, team: Team, actor: User) -> ModelGrant:
    """Let a team read all versions of a model. Idempotent.

    Raise Invalid for the model's own team, Gone for a deleted one, NotFound for a deleted model.
    """
    if team.id == model.team_id:
        detail = f"model {model.name!r} belongs to team {team.name}"
        raise Invalid("own_team", detail, remedy="its members can read it; name another team")
    with transaction.atomic(), tenancy.including([team.id]):
        locked = lock_model(model)
        if not Team.objects.select_for_update(no_key=True).filter(pk=team.pk, deleted_at=None).exists():
            raise Gone("team_deleted", f"team {team.name} is deleted", remedy="name another team")
        row, is_new = ModelGrant.objects.get_or_create(
            model=locked, team=team, defaults={"owner_id": locked.team_id, "granted_by": actor}
        )
        if is_new:
            keys.create_team_key(team)
            wrap_keys(locked, ModelVersion.objects.filter(model=locked).select_related("artifact"))
            _audit("model.grant", row, actor)
    return row


def revoke(model: RegisteredModel, team: Team, actor: User) -> None:
    """End a team's access to a model. Raise NotFound if it has none."""
    with transaction.atomic():
        row = ModelGrant.objects.select_related("model", "owner", "team").filter(model=lock_model(model), team=team)
        found = row.first()
        if found is None:
            raise NotFound("grant", f"{model.name} for {team.name}")
        end([found], actor)


def end(rows: Collection[ModelGrant], actor: User | str) -> None:
    """End grants, with their keys, in the caller's transaction."""
    ModelGrant.objects.filter(pk__in=[row.pk for row in rows]).delete()
    for row in rows:
        _audit("model.grant_end", row, actor)


def given_or_received(team: Team) -> QuerySet[ModelGrant]:
    """Return the grants of a team's models, and those of models of others that it may read."""
    rows = ModelGrant.objects.filter(Q(owner=team) | Q(team=team))
    return rows.select_related("model", "owner", "team").order_by("pk")


def wrap_keys(model: RegisteredModel, versions: Iterable[ModelVersion]) -> None:
    """Wrap the data keys of versions for every team with a grant, in the caller's transaction. Idempotent.

    The caller has locked the model. A team without a key is being erased, and gets none.
    """
    rows = list(ModelGrant.objects.filter(model=model))
    readers = {row.team_id for row in rows}
    if not rows:
        return
    with tenancy.including(readers):
        keysets = keys.locked_team_keysets({model.team_id, *readers})
        for version in versions:
            secret = keys.data_key(version.artifact.key_owner, model.team)
            for row in rows:
                if row.team_id in keysets:
                    made = GrantedKey(grant=row, version=version, team_id=row.team_id)
                    made.wrapped = encryption.wrap(keysets[row.team_id], secret, keys.granted_owner(made))
                    GrantedKey.objects.bulk_create([made], ignore_conflicts=True)


def lock_model(model: RegisteredModel) -> RegisteredModel:
    """Return the model, locked in the caller's transaction. Raise NotFound if it was deleted."""
    found = RegisteredModel.objects.select_for_update(no_key=True, of=("self",)).select_related("team", "created_by")
    row = found.filter(pk=model.pk).first()
    if row is None:
        raise NotFound("model", model.pk)
    return row


def is_granted_to(team_ids: Collection[str], prefix: str = "") -> Q:
    """Return the condition that a model is shared with one of these teams. `prefix`: from the table to the model."""
    granted = ModelGrant.objects.filter(team_id__in=list(team_ids), owner__deleted_at=None)
    return Q(**{f"{prefix}pk__in": granted.values("model_id")})


def artifact_for(team_ids: Collection[str], artifact_id: str) -> Artifact | None:
    """Return the artifact of a version that is shared with one of these teams, None if there is none.

    It has `granted`, by which its manifest and files are read; its job is not readable.
    """
    rows = GrantedKey.objects.filter(
        team_id__in=list(team_ids), version__artifact=artifact_id, grant__owner__deleted_at=None
    )
    found = rows.select_related("grant__owner", "team", "version__artifact").annotate(team_wrapped=keys.TEAM_WRAPPED)
    key = found.order_by("pk").first()
    if key is None:
        return None
    artifact = key.version.artifact
    artifact.granted = key
    return artifact


def team_that_shares(owner_id: str, team_ids: Collection[str]) -> Team | None:
    """Return the team with this id if it shares a model with one of these teams."""
    rows = ModelGrant.objects.filter(owner_id=owner_id, owner__deleted_at=None, team_id__in=list(team_ids))
    found = rows.select_related("owner").first()
    return found.owner if found else None


def _audit(action: str, row: ModelGrant, actor: User | str) -> None:
    """Record a change of access in the trails of both teams."""
    facts = {"name": row.model.name, "owner": row.owner.name, "team": row.team.name}
    for team_id in (row.owner_id, row.team_id):
        audit.record(action, actor=actor, target=("model", row.model_id), team_id=team_id, after=facts)
