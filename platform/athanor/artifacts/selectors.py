"""Queries of stored data, limited to the teams of the caller."""

from django.db.models import Exists, QuerySet

from athanor.accounts.selectors import Principal
from athanor.artifacts import dataset_versions, grants
from athanor.artifacts.models import Artifact, Checkpoint, Dataset, of_teams
from athanor.core.errors import NotFound
from athanor.jobs.models import Job


def checkpoints_of(job: Job) -> QuerySet[Checkpoint]:
    """Return the job's checkpoints that are neither retired nor deleted, the newest first."""
    return Checkpoint.objects.filter(job=job, retired_at__isnull=True, deletion=None).order_by("-created_at", "-step")


def artifacts_of(job: Job) -> QuerySet[Artifact]:
    """Return the job's artifacts that are not deleted, by kind, the newest first."""
    rows = Artifact.objects.filter(job=job, deletion=None).select_related("job__team")
    return rows.order_by("kind", "-created_at")


def artifact_of(principal: Principal, artifact_id: str) -> Artifact:
    """Return an artifact of one of the caller's teams, or raise NotFound."""
    row = (
        Artifact.objects.filter(of_teams(principal.team_ids), pk=artifact_id, deletion=None)
        .select_related("job__team", "attempt", "model_import__team")
        .first()
    )
    if row is None:
        raise NotFound("artifact", artifact_id)
    return row


def readable_artifact_of(principal: Principal, artifact_id: str) -> Artifact:
    """Return an artifact of one of the caller's teams, or one that is shared with one of them, or raise NotFound.

    Of a shared one `granted` is set, and the job cannot be read.
    """
    try:
        return artifact_of(principal, artifact_id)
    except NotFound:
        shared = grants.artifact_for(principal.team_ids, artifact_id)
        if shared is None:
            raise
        return shared


def checkpoint_of(principal: Principal, checkpoint_id: str) -> Checkpoint:
    """Return a checkpoint of one of the caller's teams, or raise NotFound."""
    row = (
        Checkpoint.objects.filter(pk=checkpoint_id, retired_at__isnull=True, deletion=None)
        .filter(job__team_id__in=principal.team_ids)
        .select_related("job__team", "attempt")
        .first()
    )
    if row is None:
        raise NotFound("checkpoint", checkpoint_id)
    return row


def any_checkpoint_of(principal: Principal, checkpoint_id: str) -> Checkpoint:
    """Return a checkpoint of one of the caller's teams, also one that is retired or deleted, or raise NotFound."""
    rows = Checkpoint.objects.filter(pk=checkpoint_id, job__team_id__in=principal.team_ids)
    row = rows.select_related("job__team", "attempt").first()
    if row is None:
        raise NotFound("checkpoint", checkpoint_id)
    return row


def datasets_of(principal: Principal, *, team: str = "", name: str = "", is_newest: bool = False) -> QuerySet[Dataset]:
    """Return the data sets of the caller's teams, each version of an upload, newest first.

    `team`: only those of the team with this name; `name`: only those with this name; `is_newest`: only the newest
    version of each.
    """
    rows = Dataset.objects.filter(team_id__in=principal.team_ids, deletion=None)
    if team:
        rows = rows.filter(team__name=team)
    if name:
        rows = rows.filter(name=name)
    if is_newest:
        rows = rows.exclude(Exists(dataset_versions.later_versions()))
    return rows.select_related("team").prefetch_related("aliases").order_by("-id")


def dataset_of(principal: Principal, dataset_id: str) -> Dataset:
    """Return a data set of one of the caller's teams, or raise NotFound."""
    row = datasets_of(principal).filter(pk=dataset_id).first()
    if row is None:
        raise NotFound("dataset", dataset_id)
    return row
