"""How much teams store in the object store, and its limit (`max_storage_bytes` of the quota tree).

Counted are: checkpoints, models, logs, profiles, uploaded data sets, tokenised forms and data reports until their
objects are deleted, and objects that attempts stored without a manifest, as of the last scan (unreferenced.py). Above
the limit, new data and new jobs are refused; a running job's checkpoints never are, since losing its work would cost
more than the bytes.
"""

from collections.abc import Iterable, Sequence

from django.db.models import Sum

from athanor.artifacts.models import Artifact, Checkpoint, DataReport, Dataset, JobStorage, ModelImport, PreparedDataset
from athanor.core import tenancy
from athanor.core.errors import Conflict
from athanor.quotas import limits, selectors
from athanor.quotas.models import QuotaNode

REMEDY = (
    "delete what is not needed (`athanor delete`, with --permanently before the undo window ends), keep fewer "
    "checkpoints (checkpoint.keep_last), or ask a platform administrator for more"
)


def stored_bytes(team_ids: Iterable[str] | None = None) -> dict[str, int]:
    """Return the stored bytes by team id, of these teams or of all."""
    wanted = None if team_ids is None else list(team_ids)
    found: dict[str, int] = {}
    with tenancy.unrestricted():
        for rows, team, size in (
            (Checkpoint.objects.filter(deleted_at__isnull=True), "job__team_id", "size_bytes"),
            (Artifact.objects.filter(deletion__purged_at=None).exclude(job=None), "job__team_id", "size_bytes"),
            (ModelImport.objects.filter(artifact__deletion__purged_at=None), "team_id", "artifact__size_bytes"),
            (Dataset.objects.filter(origin=Dataset.Origin.SEALED, deletion__purged_at=None), "team_id", "size_bytes"),
            (PreparedDataset.objects.all(), "dataset__team_id", "size_bytes"),
            (DataReport.objects.all(), "dataset__team_id", "size_bytes"),
            (JobStorage.objects.filter(unreferenced_bytes__gt=0), "team_id", "unreferenced_bytes"),
        ):
            asked = rows if wanted is None else rows.filter(**{f"{team}__in": wanted})
            sums = asked.values(team).order_by().annotate(total=Sum(size)).values_list(team, "total")
            for team_id, total in sums:
                found[team_id] = found.get(team_id, 0) + total
    return found


def unreferenced_bytes() -> dict[str, int]:
    """Return the part of `stored_bytes` that no manifest names, by team id."""
    with tenancy.unrestricted():
        rows = JobStorage.objects.filter(unreferenced_bytes__gt=0).values("team_id").order_by()
        return dict(rows.annotate(total=Sum("unreferenced_bytes")).values_list("team_id", "total"))


def check(path: Sequence[QuotaNode], coming_bytes: int | None = None) -> None:
    """Raise Conflict if a team, or a group above it, is at its storage limit, or would exceed it.

    `path`: the team's path in the quota tree (quotas/selectors.py). With `coming_bytes`, call it in the transaction
    that stores them: it locks the limited nodes, so that concurrent callers cannot exceed the limit together.
    """
    limited = [node for node in path if node.max_storage_bytes is not None]
    for node in limits.lock(limited) if coming_bytes else limited:
        most = node.max_storage_bytes
        used = sum(stored_bytes(selectors.teams_below(node.id)).values())
        if most is not None and (used >= most or used + (coming_bytes or 0) > most):
            coming = f", and {coming_bytes} more would come" if coming_bytes else ""
            raise Conflict(
                "storage_full",
                f"{limits.owner_name(node)} keeps {used} bytes of {most} that it may keep (max_storage_bytes){coming}",
                remedy=REMEDY,
                extra={"node": node.name, "limit": most, "used": used},
            )
