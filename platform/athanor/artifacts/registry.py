"""The model registry: models of a team, their numbered versions, and aliases, each of which names one version.

A version refers to the export of a job, or to an imported model (imports.py), and never changes; its artifact cannot
be deleted while it exists (artifacts/deletions.py). Deleting a version deletes a record, no files. Locks are taken in
the order job, artifact, model.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.artifacts import evaluations, grants, manifests, registry_selectors
from athanor.artifacts.evaluations import Requirement
from athanor.artifacts.models import Artifact, ModelAlias, ModelGrant, ModelVersion, RegisteredModel
from athanor.core import task_triggers
from athanor.core.errors import Conflict, Invalid, NotFound
from athanor.jobs import events
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import FINAL

MAX_NAMED_JOBS = 20


@dataclass(frozen=True)
class RegistryPreview:
    """What deleting a model or a version would remove, and what depends on it.

    `aliases` and `blocked_by` (unfinished jobs that start from a version) prevent it. `used_by`: finished jobs that
    started from one; their records stay. `grants`: other teams' access, which ends with the model. Jobs of these teams
    prevent nothing.
    """

    model: RegisteredModel
    versions: list[ModelVersion]
    aliases: list[ModelAlias]
    blocked_by: list[Job]
    used_by: list[Job]
    grants: list[ModelGrant]


def create(
    team: Team,
    actor: User,
    *,
    name: str,
    card: str = "",
    tags: Sequence[str] = (),
    first: Artifact | None = None,
    alias: str = "",
) -> RegisteredModel:
    """Create a model, with `first` as its version 1, to which `alias`, if any, points.

    Raise Conflict if the team has a model of this name, and Invalid as `register` does; then nothing is created.
    """
    with transaction.atomic():
        if first is not None:  # before the model, as in all that registers
            _locked_job(first)
        try:
            with transaction.atomic():
                row = RegisteredModel.objects.create(
                    team=team, name=name, card=card, tags=sorted(set(tags)), created_by=actor
                )
        except IntegrityError as error:
            detail = f"team {team.name} has a model {name!r}"
            raise Conflict(
                "model_exists", detail, remedy="choose another name, or register a version of that one"
            ) from error
        audit.record("model.create", actor=actor, target=("model", row.id), team_id=team.id, after=_facts(row))
        if first is not None:
            register(row, first, actor, alias)
    return row


def change(
    model: RegisteredModel, actor: User, *, card: str | None = None, tags: Sequence[str] | None = None
) -> RegisteredModel:
    """Change a model's card or tags; None leaves a field unchanged. Versions never change."""
    with transaction.atomic():
        row = grants.lock_model(model)
        before = _facts(row)
        row.card = row.card if card is None else card
        row.tags = row.tags if tags is None else sorted(set(tags))
        after = _facts(row)
        if after != before:
            row.save(update_fields=["card", "tags"])
            target = ("model", row.id)
            audit.record("model.change", actor=actor, target=target, team_id=row.team_id, before=before, after=after)
    return row


def register(model: RegisteredModel, artifact: Artifact, actor: User, alias: str = "") -> tuple[ModelVersion, bool]:
    """Make a model of a job or an import the next version of a model, and point the alias, if any, to it. Idempotent.

    Return the version, and whether it is new. Raise Invalid for what is no model, and for an export of another team.
    """
    if artifact.kind != Artifact.Kind.MODEL:
        detail = f"{artifact.id} is a {artifact.kind}"
        raise Invalid("not_a_model", detail, remedy="give an artifact of kind model, or the job that exported it")
    if artifact.owner.id != model.team_id:
        detail = f"{artifact.id} belongs to another team than model {model.name!r}"
        raise Invalid("another_team", detail, remedy="register it as a model of the team that owns it")
    with transaction.atomic():
        job = _locked_job(artifact)
        _lock_artifact(artifact)
        version, is_new = _add(job, artifact, model, actor, actor.username)
        moved = _point(job, version, alias, actor, actor.username) if alias else None
        _record(version, is_new, moved, actor)
    return version, is_new


def register_import(
    team: Team, artifact: Artifact, name: str, alias: str, tags: Sequence[str], actor: User
) -> ModelVersion:
    """Make an imported model the next version of the team's model `name`, in the caller's transaction.

    The model is created, with the tags, if the team has none of this name; tags are added to those of one that it has.
    """
    model, is_created = RegisteredModel.objects.get_or_create(
        team=team, name=name, defaults={"created_by": actor, "tags": sorted(set(tags))}
    )
    version, is_new = _add(None, artifact, model, actor, actor.username)
    moved = _point(None, version, alias, actor, actor.username) if alias else None
    if is_created:
        audit.record("model.create", actor=actor, target=("model", model.id), team_id=team.id, after=_facts(model))
    elif not set(tags) <= set(model.tags):
        change(model, actor, tags=[*model.tags, *tags])
    _record(version, is_new, moved, actor)
    return version


def register_output(job: Job, attempt: Attempt, name: str, alias: str | None) -> None:
    """Register what the job's last attempt exported, as its spec says, in the transaction that ends the job.

    The caller has locked the job. The model is created if the team has none of this name. Idempotent.
    """
    artifact = Artifact.objects.select_related("job__team").get(attempt=attempt, kind=Artifact.Kind.MODEL)
    actor = job.created_by
    _lock_artifact(artifact)
    model, is_created = RegisteredModel.objects.get_or_create(
        team_id=job.team_id, name=name, defaults={"created_by": actor}
    )
    version, is_new = _add(job, artifact, model, actor, "dispatch")
    moved = _point(job, version, alias, actor, "dispatch") if alias else None
    if is_created:
        audit.record("model.create", actor=actor, target=("model", model.id), team_id=job.team_id, after=_facts(model))
    _record(version, is_new, moved, actor)


def point_alias(
    model: RegisteredModel, alias: str, number: int, actor: User, requirements: Sequence[Requirement] = ()
) -> ModelAlias:
    """Point an alias to a version of the model; create the alias if there is none. Idempotent.

    Raise Invalid for a version that does not exist, Conflict for one that does not meet the requirements.
    """
    with transaction.atomic():
        version = _version(model, number)
        job = _locked_job(version.artifact)
        grants.lock_model(model)
        version = _version(model, number)  # it may have been deleted before the lock was taken
        met = evaluations.check_requirements(version, requirements)
        moved = _point(job, version, alias, actor, actor.username, met)
        if moved is not None:
            _record(version, False, moved, actor, met)
    return ModelAlias.objects.select_related("version", "moved_by").get(model=model, name=alias)


def remove_alias(model: RegisteredModel, alias: str, actor: User) -> None:
    """Remove an alias; the version stays. Raise NotFound if the model has none of this name."""
    with transaction.atomic():
        found = ModelAlias.objects.filter(model=model, name=alias).select_related("version__artifact").first()
        if found is None:
            raise NotFound("alias", alias)
        job = _locked_job(found.version.artifact)
        grants.lock_model(model)
        if not ModelAlias.objects.filter(pk=found.pk, version=found.version).delete()[0]:
            detail = f"{model.name}@{alias} was moved meanwhile"
            raise Conflict("alias_moved", detail, remedy="look at the model again, then repeat the request")
        facts = {"model": model.id, "name": model.name, "alias": alias, "version": found.version.number}
        _report(job, "model.alias_removed", actor.username, f"{model.name}@{alias}", facts)
        _audit("model.alias_remove", model, actor, before={"alias": alias, "version": found.version.number})


def preview(model: RegisteredModel, number: int | None = None) -> RegistryPreview:
    """Return what deleting the model, or one version of it, would remove, and what depends on it.

    Raise NotFound for a version that does not exist.
    """
    versions = ModelVersion.objects.filter(model=model).select_related("model", "artifact")
    versions = registry_selectors.with_origins(versions)
    versions = versions.prefetch_related(registry_selectors.results_by([model.team_id]))
    chosen = list((versions if number is None else versions.filter(number=number)).order_by("-number"))
    if number is not None and not chosen:
        raise NotFound("version", f"{model.name}@{number}")
    bases = [f"model:{version.artifact_id}" for version in chosen]
    users = Job.objects.filter(team_id=model.team_id, resolved_spec__training__model__base__in=bases).order_by("-id")
    return RegistryPreview(
        model,
        chosen,
        list(ModelAlias.objects.filter(version__in=chosen).select_related("version").order_by("name")),
        list(users.exclude(status__in=FINAL)[:MAX_NAMED_JOBS]),
        list(users.filter(status__in=FINAL)[:MAX_NAMED_JOBS]),
        list(grants.grants_of(model).select_related("model", "owner")),
    )


def delete(model: RegisteredModel, actor: User, number: int | None = None) -> None:
    """Delete the model, or one version of it: the records, not the artifacts.

    Raise Conflict while an alias names it or an unfinished job starts from it, NotFound for a missing version.
    """
    with transaction.atomic():
        row = grants.lock_model(model)
        found = preview(row, number)
        name = row.name if number is None else f"{row.name}@{number}"
        if found.aliases:
            listed = ", ".join(f"{alias.name} (version {alias.version.number})" for alias in found.aliases)
            remedy = f"move or remove the aliases first: athanor model alias {row.name} ALIAS --remove"
            raise Conflict("model_in_use", f"{name} has the aliases {listed}", remedy=remedy)
        if found.blocked_by:
            listed = ", ".join(f"{job.name} ({job.id}, {job.status})" for job in found.blocked_by)
            remedy = "wait until they have ended, or cancel them, then delete it"
            raise Conflict("model_in_use", f"{name} is the base model of {listed}", remedy=remedy)
        artifacts = [version.artifact_id for version in found.versions]
        if number is None:
            grants.end(found.grants, actor)
            row.delete()
            _audit("model.delete", model, actor, before={**_facts(row), "artifacts": artifacts})
        else:
            found.versions[0].delete()
            _audit("model.version_delete", model, actor, before={"version": number, "artifacts": artifacts})


def _lock_artifact(artifact: Artifact) -> None:
    """Lock the artifact against its deletion. Raise Conflict if it is deleted."""
    if Artifact.objects.select_for_update(no_key=True).get(pk=artifact.pk).deletion_id is not None:
        detail = f"{artifact.id} is deleted"
        raise Conflict("artifact_deleted", detail, remedy="restore it first: `athanor trash list` shows deletions")


def _version(model: RegisteredModel, number: int) -> ModelVersion:
    rows = ModelVersion.objects.filter(model=model, number=number).select_related("model", "artifact")
    found = rows.prefetch_related(registry_selectors.results_by([model.team_id])).first()
    if found is None:
        detail = f"model {model.name!r} has no version {number}"
        raise Invalid("unknown_version", detail, remedy=f"`athanor model show {model.name}` lists its versions")
    return found


def _add(
    job: Job | None, artifact: Artifact, model: RegisteredModel, actor: User, by: str
) -> tuple[ModelVersion, bool]:
    """Create the next version, or return the one that this artifact is already. The caller has locked job and artifact.

    `by`: who is named as the actor of the event.
    """
    row = grants.lock_model(model)
    known = ModelVersion.objects.filter(model=row, artifact=artifact).select_related("model").first()
    if known is not None:
        return known, False
    digest = hashlib.sha256(manifests.of_stored(artifact).authenticated_bytes()).hexdigest()
    row.last_version += 1
    row.save(update_fields=["last_version"])
    version = ModelVersion.objects.create(
        model=row, number=row.last_version, artifact=artifact, digest=digest, created_by=actor
    )
    grants.wrap_keys(row, [version])
    facts = {"model": row.id, "name": row.name, "version": version.number, "artifact": artifact.id}
    _report(job, "model.registered", by, str(version), facts)
    return version, True


def _point(
    job: Job | None, version: ModelVersion, alias: str, actor: User, by: str, met: Sequence[dict[str, Any]] = ()
) -> dict[str, Any] | None:
    """Point an alias to a version, and return where it pointed before; None if it pointed there already.

    `met`: the requirements that the version met, for the event. The caller has locked the version's job and its model.
    """
    row = ModelAlias.objects.filter(model=version.model, name=alias).select_related("version").first()
    if row is not None and row.version == version:
        return None
    before = row.version.number if row else None
    ModelAlias.objects.update_or_create(
        model=version.model, name=alias, defaults={"version": version, "moved_by": actor, "moved_at": timezone.now()}
    )
    name = version.model.name
    facts = {
        "model": version.model_id, "name": name, "alias": alias, "version": version.number, "previous_version": before,
        **({"requirements": list(met)} if met else {}),
    }  # fmt: skip
    _report(job, "model.alias_moved", by, f"{name}@{alias} is version {version.number}", facts)
    return {"alias": alias, "version": before}


def _locked_job(artifact: Artifact) -> Job | None:
    """Return the job that stored an artifact, locked in the caller's transaction; None of an imported model."""
    return Job.objects.select_for_update(no_key=True).get(pk=artifact.job_id) if artifact.job_id else None


def _report(job: Job | None, kind: str, actor: str, message: str, facts: dict[str, Any]) -> None:
    """Append an event to a version's job, and have webhooks sent it. An imported version has none: the audit trail has
    the same facts."""
    if job is None:
        return
    events.append(job, kind, actor=actor, message=message, data=facts)
    job.save(update_fields=["event_seq", "updated_at"])
    task_triggers.trigger_after_commit(task_triggers.PUBLISH)


def _record(
    version: ModelVersion,
    is_new: bool,
    moved: dict[str, Any] | None,
    actor: User,
    met: Sequence[dict[str, Any]] = (),
) -> None:
    """Record in the audit trail what `_add` and `_point` changed. `met`: the requirements of the move."""
    if is_new:
        facts = {"version": version.number, "artifact": version.artifact_id, "digest": version.digest}
        _audit("model.register", version.model, actor, after=facts)
    if moved is not None:
        _audit(
            "model.alias_move",
            version.model,
            actor,
            before=moved,
            after={**moved, "version": version.number, **({"requirements": list(met)} if met else {})},
        )


def _audit(action: str, model: RegisteredModel, actor: User, **facts: Any) -> None:
    audit.record(action, actor=actor, target=("model", model.id), team_id=model.team_id, **facts)


def _facts(row: RegisteredModel) -> dict[str, Any]:
    """Return what the audit trail records of a model: of its card, which may be long, the digest."""
    return {"name": row.name, "tags": row.tags, "card_sha256": hashlib.sha256(row.card.encode()).hexdigest()}
