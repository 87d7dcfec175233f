"""Projects group the jobs of a team. Submitting to a new name creates the project; an archived one takes no jobs."""

from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import Count, Max, Q, QuerySet
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.accounts.selectors import Principal
from athanor.core import ids
from athanor.core.errors import Conflict, FieldProblem, Invalid, NotFound
from athanor.jobs.models import Job, Project
from athanor.jobs.states import FINAL

# The locks hold up a deletion of the team or project until the job is there, and the other way round.
SELECT_FOR_SUBMISSION = """
    SELECT team.deleted_at IS NULL, project.archived_at IS NULL, project.id
    FROM (SELECT deleted_at FROM accounts_team WHERE id = %(team)s FOR KEY SHARE) team
    LEFT JOIN (
        SELECT id, archived_at FROM jobs_project WHERE team_id = %(team)s AND name = %(name)s FOR KEY SHARE
    ) project ON true
"""
DEFAULT = "default"  # of a spec that names none
# Two first jobs of a project may be submitted concurrently.
INSERT_PROJECT = """
    INSERT INTO jobs_project (id, team_id, name, description, created_at, created_by_id)
    VALUES (%s, %s, %s, '', %s, %s) ON CONFLICT (team_id, name) DO NOTHING
"""


def get_or_create_for_submission(team: Team, name: str, user: User) -> None:
    """Create the project if the team has none of this name, in the transaction of the submission.

    Raises Invalid for an archived project, Conflict for a deleted team. Written in SQL: it is part of each submission.
    """
    with connection.cursor() as cursor:
        cursor.execute(SELECT_FOR_SUBMISSION, {"team": team.id, "name": name})
        is_team_there, is_open, project_id = cursor.fetchone() or (False, False, None)
        if not is_team_there:
            raise Conflict("team_deleted", f"team {team.name} is deleted", remedy="submit to another team")
        if project_id is None:
            cursor.execute(INSERT_PROJECT, [ids.project_id(), team.id, name, timezone.now(), user.id])
        elif not is_open:
            detail = f"project {name!r} of team {team.name} is archived"
            remedy = "take it out of the archive, or name another"
            problem = FieldProblem("/project", "project_archived", detail)
            raise Invalid("invalid_spec", detail, remedy=remedy, problems=(problem,))


def create(team: Team, name: str, description: str, user: User) -> Project:
    """Create a project. Raises Conflict if its team has one with this name."""
    try:
        with transaction.atomic():
            row = Project.objects.create(team=team, name=name, description=description, created_by=user)
            facts = {"name": name, "description": description}
            audit.record("project.create", actor=user, target=("project", row.id), team_id=team.id, after=facts)
    except IntegrityError as error:
        detail = f"team {team.name} has a project {name!r}"
        raise Conflict("project_exists", detail, remedy="choose another name, or change that one") from error
    return row


def change(project: Project, user: User, *, description: str | None = None, archived: bool | None = None) -> Project:
    """Change a project; None leaves a field unchanged. Existing jobs, also running ones, are not affected."""
    with transaction.atomic():
        row = Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        before = _facts(row)
        if description is not None:
            row.description = description
        if archived is not None and archived != (row.archived_at is not None):
            row.archived_at = timezone.now() if archived else None
        after = _facts(row)
        if after != before:
            row.save(update_fields=["description", "archived_at"])
            target = ("project", row.id)
            audit.record("project.change", actor=user, target=target, team_id=row.team_id, before=before, after=after)
    return row


def soft_delete(project: Project, suffix: str) -> None:
    """Mark a project, which the caller has locked, as deleted, and append `suffix` to its name to free the name."""
    name = f"{project.name[:60]}.{suffix}"
    Job.objects.filter(team_id=project.team_id, project=project.name).update(project=name)
    Project.objects.filter(pk=project.pk).update(name=name, deleted_at=timezone.now())


def restore(project_id: str, name: str) -> None:
    """Undo `soft_delete`. Raises Conflict when the name was taken meanwhile."""
    row = Project.objects.select_for_update().get(pk=project_id)
    try:
        with transaction.atomic():
            Project.objects.filter(pk=row.pk).update(name=name, deleted_at=None)
    except IntegrityError as error:
        raise Conflict(
            "project_exists",
            f"the team has another project {name!r} by now",
            remedy="delete that one first; projects cannot be renamed",
        ) from error
    Job.objects.filter(team_id=row.team_id, project=row.name).update(project=name)


def projects_of(principal: Principal, *, team: str = "", archived: bool | None = None) -> QuerySet[Project]:
    """Return the projects of the caller's teams, or of the one with this name, newest first."""
    rows = Project.objects.filter(team_id__in=principal.team_ids, deleted_at=None)
    if team:
        rows = rows.filter(team__name=team)
    if archived is not None:
        rows = rows.filter(archived_at__isnull=not archived)
    return rows.select_related("team", "created_by").order_by("-id")


def project_of(principal: Principal, project_id: str) -> Project:
    """Return a project of the caller's teams. Raises NotFound."""
    row = projects_of(principal).filter(pk=project_id).first()
    if row is None:
        raise NotFound("project", project_id)
    return row


def with_activity(rows: list[Project]) -> list[Project]:
    """Add `job_count`, `live_job_count` and `last_submitted_at`, in one statement for all of them."""
    wanted = Q()
    for row in rows:
        wanted |= Q(team_id=row.team_id, project=row.name)
    live = ~Q(status__in=[status.value for status in FINAL])
    counted = Job.objects.filter(wanted).values("team_id", "project") if rows else Job.objects.none().values()
    found: dict[tuple[str, str], Any] = {
        (entry["team_id"], entry["project"]): entry
        for entry in counted.annotate(jobs=Count("id"), live=Count("id", filter=live), last=Max("created_at"))
    }
    for row in rows:
        entry = found.get((row.team_id, row.name), {})
        row.job_count, row.live_job_count = entry.get("jobs", 0), entry.get("live", 0)
        row.last_submitted_at = entry.get("last")
    return rows


def _facts(row: Project) -> dict[str, Any]:
    return {"description": row.description, "archived": row.archived_at is not None}
