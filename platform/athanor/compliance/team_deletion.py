"""Deleting a team: what that would remove, and the end of all access. After the undo window erasure.py erases it.

From the deletion on nobody belongs to the team: sessions, tokens and service accounts see nothing of it, its streams
end, its webhooks are sent nothing, nothing can be submitted or stored. Restoring it brings all of that back.
"""

from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import ApiToken, Membership, Team, User
from athanor.accounts.selectors import open_invitations, service_accounts_of
from athanor.artifacts import usage
from athanor.artifacts.deletions import MAX_NAMED_JOBS, Preview
from athanor.artifacts.models import (
    Artifact,
    Checkpoint,
    DataKey,
    Dataset,
    Deletion,
    ModelGrant,
    PreparedDataset,
    RegisteredModel,
    TeamSecret,
    of_teams,
)
from athanor.budgets.models import Budget
from athanor.core import task_triggers
from athanor.core.errors import Conflict
from athanor.jobs.models import Job, Project
from athanor.jobs.states import FINAL
from athanor.webhooks.models import Webhook


def preview(team: Team) -> Preview:
    """Return what deleting the team would remove, and the unfinished jobs that forbid it."""
    unfinished = Job.objects.filter(team=team).exclude(status__in=FINAL).order_by("-id")
    return Preview(
        Deletion.Kind.TEAM,
        team.id,
        team.name,
        usage.stored_bytes([team.id]).get(team.id, 0),
        artifacts=list(Artifact.objects.filter(of_teams([team.id]), deletion__purged_at=None)),
        checkpoints=list(Checkpoint.objects.filter(job__team=team, deleted_at=None)),
        preparations=list(PreparedDataset.objects.filter(dataset__team=team)),
        blocked_by=list(unfinished[:MAX_NAMED_JOBS]),
        undo_days=settings.ATHANOR.undo_days,
        contents={
            "members": Membership.objects.filter(team=team, user__service_team=None).count(),
            "service_accounts": service_accounts_of(team).count(),
            "tokens": ApiToken.objects.filter(team=team, revoked_at=None, expires_at__gt=timezone.now()).count(),
            "invitations": open_invitations().filter(team=team).count(),
            "projects": Project.objects.filter(team=team, deleted_at=None).count(),
            "jobs": Job.objects.filter(team=team).count(),
            "models": RegisteredModel.objects.filter(team=team).count(),
            "model_grants": ModelGrant.objects.filter(owner=team).count(),
            "datasets": Dataset.objects.filter(team=team, deletion__purged_at=None).count(),
            "secrets": TeamSecret.objects.filter(team=team).count(),
            "webhooks": Webhook.objects.filter(team=team).count(),
            "data_keys": DataKey.objects.filter(team=team).count(),
            "budgets": Budget.objects.filter(node__team=team).count(),
        },
    )


def delete(team: Team, user: User, *, permanently: bool = False) -> Deletion:
    """End all access to the team, and erase it after the window, or with `permanently` at the next sweep.

    Raises Conflict while the team has unfinished jobs.
    """
    with transaction.atomic():
        # The full lock: a submission under way is over, and its job seen, before the preview.
        row = Team.objects.select_for_update().get(pk=team.pk)
        if row.deleted_at is not None:
            raise Conflict("team_deleted", f"team {row.name} is deleted already", remedy="see GET /deletions")
        found = preview(row)
        if found.blocked_by:
            names = ", ".join(f"{job.name} ({job.id}, {job.status})" for job in found.blocked_by)
            raise Conflict(
                "still_needed",
                f"team {row.name} has unfinished jobs: {names}",
                remedy="cancel them, or wait until they have ended, then delete the team",
            )
        now = timezone.now()
        row.deleted_at = now
        row.save(update_fields=["deleted_at"])
        deletion = Deletion.objects.create(
            team=row,
            kind=Deletion.Kind.TEAM,
            target_id=row.id,
            name=row.name,
            size_bytes=found.size_bytes,
            deleted_by=user,
            purge_after=now if permanently else now + timedelta(days=found.undo_days),
        )
        facts = {"name": row.name, "size_bytes": found.size_bytes, "permanently": permanently, "deletion": deletion.id}
        audit.record(
            "team.delete", actor=user, target=("team", row.id), team_id=row.id, after={**facts, **found.contents}
        )
        if permanently:
            task_triggers.trigger_after_commit(task_triggers.ERASE_TEAMS)
    return deletion
