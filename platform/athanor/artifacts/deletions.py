"""Deletion of stored data: finished jobs, projects, artifacts, checkpoints and data sets, with a window to undo it.

A deletion hides its rows immediately. After the window a periodic task deletes their objects, which returns the storage
to the quota. The record of a job (spec, events, metrics, cost) stays, since budgets and the audit trail refer to it; so
do the rows of what was purged, without their objects. A data key with nothing left to decrypt is destroyed. A deleted
project frees its name; its jobs get the suffix `.deleted-ID` behind their project's. Teams: compliance/erasure.py.

What an unfinished job needs cannot be deleted: `preview` names the job. Neither can a version of a registered model:
deleting its job or project leaves its artifact, and with it the data key. The objects of a manifest that is not
authentic are never deleted, since it may name those of others.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.artifacts import checkpoint_uses, deletion_hold, keys, manifests, storage
from athanor.artifacts.models import (
    Artifact,
    Checkpoint,
    DataReport,
    Dataset,
    Deletion,
    ModelImport,
    ModelVersion,
    PreparedDataset,
)
from athanor.core import task_triggers, tenancy
from athanor.core.errors import Conflict, Invalid, NotFound
from athanor.jobs import projects
from athanor.jobs.models import Job, Project
from athanor.jobs.selectors import based_on
from athanor.jobs.states import FINAL
from trainer.contract.manifest import MANIFEST_NAME, StoredFile

MAX_NAMED_JOBS = 20
Target = Job | Artifact | Checkpoint | Dataset | Project
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preview:
    """What a deletion would remove, and the jobs that depend on it.

    `blocked_by`: unfinished jobs that need the target. `used_by`: finished jobs that refer to it and are not changed.
    `registered`: versions of models, the artifacts of which are not deleted: of a data set, those that jobs on it have
    exported. `aliases`: those that name a version of a data set.
    """

    kind: str
    target_id: str
    name: str
    size_bytes: int
    artifacts: list[Artifact] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    preparations: list[PreparedDataset] = field(default_factory=list)
    blocked_by: list[Job] = field(default_factory=list)
    used_by: list[Job] = field(default_factory=list)
    registered: list[ModelVersion] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    undo_days: int = 0
    contents: dict[str, int] = field(default_factory=dict)

    @property
    def num_artifacts(self) -> int:
        """Return the number of artifacts to delete."""
        return len(self.artifacts)

    @property
    def num_checkpoints(self) -> int:
        """Return the number of checkpoints to delete."""
        return len(self.checkpoints)

    @property
    def num_preparations(self) -> int:
        """Return the number of tokenised forms to delete."""
        return len(self.preparations)


def preview(target: Target) -> Preview:
    """Return what deleting the target would remove, and what depends on it."""
    days: int = settings.ATHANOR.undo_days
    if isinstance(target, Dataset):
        users = Job.objects.filter(Q(dataset_id=target.id) | Q(more_dataset_ids__contains=[target.id]))
        prepared, reports = list(target.prepared.all()), list(target.reports.all())
        return Preview(
            Deletion.Kind.DATASET,
            target.id,
            str(target),
            target.size_bytes + sum(row.size_bytes for row in prepared) + sum(row.size_bytes for row in reports),
            preparations=prepared,
            registered=list(_versions_of(Artifact.objects.filter(job__in=users))),
            aliases=list(target.aliases.order_by("name").values_list("name", flat=True)),
            undo_days=days,
            contents={"data_reports": len(reports)},
            **_users(users),
        )
    if isinstance(target, Project):
        return _preview_of_project(target)
    if isinstance(target, Job):
        artifacts, registered = _split(Artifact.objects.filter(job=target, deletion=None))
        checkpoints = list(Checkpoint.objects.filter(job=target, deletion=None, deleted_at=None))
        kind, name = Deletion.Kind.JOB, target.name
    elif isinstance(target, Artifact):
        checkpoints, kind, name = [], Deletion.Kind.ARTIFACT, target.name
        artifacts, registered = _split(Artifact.objects.filter(pk=target.pk))
    else:
        artifacts, checkpoints, registered = [], [target], []
        kind, name = Deletion.Kind.CHECKPOINT, f"checkpoint of step {target.step}"
    bases = [f"model:{row.id}" for row in artifacts if row.kind == Artifact.Kind.MODEL]
    job_id = target.id if isinstance(target, Job) else target.job_id  # None of an imported model
    users = Job.objects.filter(based_on(bases))
    used = _users(users | Job.objects.filter(pk=job_id).exclude(status__in=FINAL), checkpoints)
    size = sum(row.size_bytes for row in [*artifacts, *checkpoints])
    return Preview(kind, target.pk, name, size, artifacts, checkpoints, registered=registered, undo_days=days, **used)


def _preview_of_project(project: Project) -> Preview:
    jobs = Job.objects.filter(team_id=project.team_id, project=project.name)
    artifacts, registered = _split(Artifact.objects.filter(job__in=jobs, deletion=None))
    checkpoints = list(Checkpoint.objects.filter(job__in=jobs, deletion=None, deleted_at=None))
    bases = [f"model:{row.id}" for row in artifacts if row.kind == Artifact.Kind.MODEL]
    users = Job.objects.filter(based_on(bases))
    inside = Q(team_id=project.team_id, project=project.name)
    used = _users(users.exclude(inside, status__in=FINAL) | jobs.exclude(status__in=FINAL), checkpoints)
    return Preview(
        Deletion.Kind.PROJECT,
        project.id,
        project.name,
        sum(row.size_bytes for row in [*artifacts, *checkpoints]),
        artifacts,
        checkpoints,
        registered=registered,
        undo_days=settings.ATHANOR.undo_days,
        contents={"jobs": jobs.count()},
        **used,
    )


def delete(target: Target, user: User, *, permanently: bool = False) -> Deletion:
    """Hide the target, and delete its objects after the window; with `permanently`, at the next run of the purge.

    Raise Conflict while an unfinished job needs it, Invalid for data that the platform does not store.
    """
    if isinstance(target, Dataset) and target.origin != Dataset.Origin.SEALED:
        raise Invalid(
            "not_stored_here",
            f"{target.name} is not an upload",
            remedy="delete it where it is stored; jobs only read it",
        )
    if isinstance(target, Project) and target.name == projects.DEFAULT:
        raise Conflict(
            "default_project",
            "the default project takes the jobs that name no project and cannot be deleted",
            remedy="delete what its jobs stored, job by job (DELETE /jobs/{id}), or move new jobs to another project",
        )
    team = target.team if isinstance(target, Job | Dataset | Project) else target.owner
    with transaction.atomic():
        is_project = isinstance(target, Project)  # for it the full lock: it waits for submissions to the project
        type(target)._default_manager.select_for_update(no_key=not is_project).get(pk=target.pk)
        # No artifact of these can be registered from here on: the second preview shows what was until then.
        held = [row.pk for row in preview(target).artifacts]
        list(Artifact.objects.select_for_update(no_key=True).filter(pk__in=held).order_by("pk").values_list("pk"))
        list(_lock_checkpoints(target))  # a submission that reads one of them waits, or is seen by the second preview
        found = preview(target)
        _check_unused(found)
        now = timezone.now()
        row = Deletion.objects.create(
            team=team,
            kind=found.kind,
            target_id=found.target_id,
            name=target.name if isinstance(target, Dataset) else found.name,
            version=target.version if isinstance(target, Dataset) else None,
            size_bytes=found.size_bytes,
            deleted_by=user,
            purge_after=now if permanently else now + timedelta(days=found.undo_days),
        )
        _mark(row, found)
        if isinstance(target, Dataset):  # the name is free again, the number is not (dataset_versions.next_number)
            Dataset.objects.filter(pk=target.pk).update(name=f"{target.name} {row.id}", deletion=row)
        if isinstance(target, Project):
            projects.soft_delete(target, f"deleted-{row.id}")
        facts = {"name": found.name, "size_bytes": found.size_bytes, "permanently": permanently, "deletion": row.id}
        audit.record(f"{found.kind}.delete", actor=user, target=(found.kind, target.pk), team_id=team.id, after=facts)
        if permanently:
            task_triggers.trigger_after_commit(task_triggers.SWEEP_STORAGE)
    return row


def restore(row: Deletion, user: User) -> Deletion:
    """Undo a deletion. Raise Conflict if its objects are being deleted, or its name was taken meanwhile."""
    with transaction.atomic():
        row = Deletion.objects.select_for_update(no_key=True).get(pk=row.pk)
        if row.state != "pending":
            raise Conflict(
                "deletion_over", f"{row.id} is {row.state}", remedy="only a pending deletion can be undone; list them"
            )
        if row.kind == Deletion.Kind.DATASET:
            number = row.version or 1  # deleted before versions were numbered
            if Dataset.objects.filter(team_id=row.team_id, name=row.name, version=number).exists():
                raise Conflict(
                    "dataset_exists",
                    f"the team has another data set {row.name}@{number} by now",
                    remedy="delete that one first",
                )
            Dataset.objects.filter(deletion=row).update(name=row.name)
        if row.kind == Deletion.Kind.PROJECT:
            projects.restore(row.target_id, row.name)
        if row.kind == Deletion.Kind.TEAM:
            Team.objects.filter(pk=row.target_id).update(deleted_at=None)
        for model in (Artifact, Checkpoint, Dataset):
            model._default_manager.filter(deletion=row).update(deletion=None)
        row.restored_at = timezone.now()
        row.save(update_fields=["restored_at"])
        target, after = (row.kind, row.target_id), {"deletion": row.id}
        audit.record(f"{row.kind}.restore", actor=user, target=target, team_id=row.team_id, after=after)
    return row


def expedite(row: Deletion, user: User) -> Deletion:
    """End the window of a pending deletion: its objects are deleted at the next run of the purge."""
    with transaction.atomic():
        row = Deletion.objects.select_for_update(no_key=True).get(pk=row.pk)
        if row.state != "pending":
            raise Conflict("deletion_over", f"{row.id} is {row.state}", remedy="nothing is left to do")
        row.purge_after = timezone.now()
        row.save(update_fields=["purge_after"])
        target, after = (row.kind, row.target_id), {"deletion": row.id}
        audit.record(f"{row.kind}.purge", actor=user, target=target, team_id=row.team_id, after=after)
        task_triggers.trigger_after_commit(
            task_triggers.ERASE_TEAMS if row.kind == Deletion.Kind.TEAM else task_triggers.SWEEP_STORAGE
        )
    return row


def deletions_of(principal: Principal) -> QuerySet[Deletion]:
    """Return the deletions of the user's teams, and of deleted teams if the user manages teams."""
    visible = Q(team_id__in=principal.team_ids)
    if Permission.MANAGE_TEAMS in principal.platform:
        deleted = set(Team.objects.exclude(deleted_at=None).values_list("pk", flat=True))
        tenancy.restrict(principal.team_ids | deleted)
        visible |= Q(kind=Deletion.Kind.TEAM, team_id__in=deleted)
    return Deletion.objects.filter(visible).select_related("team", "deleted_by").order_by("-id")


def deletion_of(principal: Principal, deletion_id: str) -> Deletion:
    """Return a deletion that the user sees, or raise NotFound."""
    row = deletions_of(principal).filter(pk=deletion_id).first()
    if row is None:
        raise NotFound("deletion", deletion_id)
    return row


def due() -> QuerySet[Deletion]:
    """Return the deletions whose objects must be deleted now, except in deleted teams.

    Those teams are erased with all that was deleted in them (compliance/erasure.py).
    """
    return due_of_any_kind().filter(team__deleted_at=None)


def due_of_any_kind() -> QuerySet[Deletion]:
    """Return the deletions whose objects must be deleted now."""
    return Deletion.objects.filter(purged_at=None, restored_at=None, purge_after__lte=timezone.now())


@deletion_hold.unless_held
def purge_due(limit: int = 20) -> int:
    """Delete the objects of due deletions. Return how many deletions are complete. Safe to repeat and to run twice."""
    done = 0
    for row in due().order_by(F("purge_started_at").asc(nulls_first=True), "purge_after")[:limit]:
        # From here on it cannot be restored; one that fails is tried again after the others.
        started = Deletion.objects.filter(pk=row.pk, restored_at=None).update(purge_started_at=timezone.now())
        done += _purge(row) if started else 0
    return done


def _purge(row: Deletion) -> int:
    artifacts = list(Artifact.objects.filter(deletion=row).select_related("job__team", "model_import__team"))
    checkpoints = list(Checkpoint.objects.filter(deletion=row, deleted_at=None).select_related("job__team"))
    datasets = list(Dataset.objects.filter(deletion=row).select_related("team"))
    prepared = list(PreparedDataset.objects.filter(dataset__in=datasets).select_related("dataset__team"))
    reports = list(DataReport.objects.filter(dataset__in=datasets).select_related("dataset__team"))
    stored: list[Artifact | Checkpoint] = [*artifacts, *checkpoints]
    try:
        files = [file for each in stored for file in manifests.of_stored(each).files]
        files += [file for each in prepared for file in manifests.of_preparation(each).files]
        files += [file for each in reports for file in manifests.of_report(each).files]
        files += [file for each in datasets for file in manifests.of_upload(each)]
    except Conflict:
        log.exception("the objects of %s stay in the store", row.pk)
        return 0
    storage.delete([*_manifest_keys(checkpoints), *_keys(files)])
    with transaction.atomic():
        changed = Deletion.objects.filter(pk=row.pk, purged_at=None).update(purged_at=timezone.now())
        now = timezone.now()
        Checkpoint.objects.filter(pk__in=[each.pk for each in checkpoints]).update(retired_at=now, deleted_at=now)
        PreparedDataset.objects.filter(pk__in=[each.pk for each in prepared]).delete()
        DataReport.objects.filter(pk__in=[each.pk for each in reports]).delete()
        if row.kind == Deletion.Kind.PROJECT:
            Project.objects.filter(pk=row.target_id).delete()
        _destroy_keys(row, {each.key_owner for each in stored}, datasets)
        if changed:
            target, after = (row.kind, row.target_id), {"deletion": row.id, "size_bytes": row.size_bytes}
            audit.record(f"{row.kind}.purged", actor="storage", target=target, team_id=row.team_id, after=after)
    return changed


def _destroy_keys(row: Deletion, owners: set[str], datasets: list[Dataset]) -> None:
    """Destroy the data keys of data sets, imported models, and ended jobs of which nothing is stored after this."""
    for dataset in datasets:
        keys.destroy(dataset.id)
    for imported in ModelImport.objects.filter(pk__in=owners):
        keys.destroy(imported.pk)
    for job in Job.objects.filter(pk__in=owners, status__in=FINAL):
        artifacts = Artifact.objects.filter(job=job, deletion__purged_at=None).exclude(deletion=row)
        if not artifacts.exists() and not Checkpoint.objects.filter(job=job, deleted_at=None).exists():
            keys.destroy(job.id)


def _manifest_keys(checkpoints: list[Checkpoint]) -> list[str]:
    """Return the keys of the checkpoints' manifests, which are stored beside their parts."""
    first = [manifests.of_checkpoint(row).files[0].parts[0].key for row in checkpoints]
    return [f"{key.rpartition('/')[0]}/{MANIFEST_NAME}" for key in first]


def _keys(files: list[StoredFile]) -> list[str]:
    return [part.key for file in files for part in file.parts]


def _split(rows: QuerySet[Artifact]) -> tuple[list[Artifact], list[ModelVersion]]:
    """Return the artifacts that are no version of a model, and the versions that the others are."""
    return list(rows.filter(versions=None)), list(_versions_of(rows))


def _versions_of(rows: QuerySet[Artifact]) -> QuerySet[ModelVersion]:
    """Return the versions of models that artifacts are."""
    return ModelVersion.objects.filter(artifact__in=rows).select_related("model").order_by("model__name", "number")


def _mark(row: Deletion, found: Preview) -> None:
    Artifact.objects.filter(pk__in=[each.pk for each in found.artifacts]).update(deletion=row)
    Checkpoint.objects.filter(pk__in=[each.pk for each in found.checkpoints]).update(deletion=row)


def _lock_checkpoints(target: Target) -> QuerySet[Checkpoint, Any]:
    """Return the locked checkpoints that a deletion of the target removes."""
    rows = Checkpoint.objects.select_for_update(no_key=True, of=("self",)).order_by("pk")
    if isinstance(target, Checkpoint):
        chosen = rows.filter(pk=target.pk)
    elif isinstance(target, Job):
        chosen = rows.filter(job=target, deleted_at=None)
    elif isinstance(target, Project):
        jobs = Job.objects.filter(team_id=target.team_id, project=target.name)
        chosen = rows.filter(job__in=jobs, deleted_at=None)
    else:
        chosen = rows.none()
    return chosen.values_list("pk")


def _users(jobs: QuerySet[Job], checkpoints: Sequence[Checkpoint] = ()) -> dict[str, Any]:
    """Return the jobs that need what is deleted, by whether they have ended. `checkpoints`: that are deleted, too."""
    rows = jobs.order_by("-id")
    blocking = {job.id: job for job in rows.exclude(status__in=FINAL)[:MAX_NAMED_JOBS]}
    blocking |= {job.id: job for job in checkpoint_uses.readers_of_checkpoints(checkpoints)}
    return {
        "blocked_by": [blocking[each] for each in sorted(blocking, reverse=True)[:MAX_NAMED_JOBS]],
        "used_by": list(rows.filter(status__in=FINAL)[:MAX_NAMED_JOBS]),
    }


def _check_unused(found: Preview) -> None:
    if found.aliases:
        raise Conflict(
            "dataset_in_use",
            f"{found.name} has the aliases {', '.join(found.aliases)}",
            remedy="move or remove them first: athanor dataset alias "
            f"{found.name.partition('@')[0]} {found.aliases[0]} --remove",
        )
    if found.kind == Deletion.Kind.ARTIFACT and found.registered:
        names = ", ".join(map(str, found.registered))
        version = found.registered[0]
        raise Conflict(
            "registered_version",
            f"{found.target_id} is registered as {names}",
            remedy=f"delete the version first: athanor model delete {version.model.name} {version.number}",
        )
    if found.blocked_by:
        names = ", ".join(f"{job.name} ({job.id}, {job.status})" for job in found.blocked_by)
        raise Conflict(
            "still_needed",
            f"{found.name} is needed by {names}",
            remedy="wait until they have ended, or cancel them, then delete it",
        )
