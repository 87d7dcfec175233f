"""Deletions of jobs, artifacts, checkpoints, data sets, projects and teams: preview, delete, restore, purge."""

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check, check_may_write, check_platform, get_principal, team_for
from athanor.api.pagination import PAGE_PARAMETERS, paginate, paginated_response, serialize_many
from athanor.api.parameters import read_flag
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.deletions import CertificateSerializer, DeletionPreviewSerializer, DeletionSerializer
from athanor.artifacts import deletions, selectors
from athanor.artifacts.deletions import Target
from athanor.artifacts.models import Deletion
from athanor.compliance import erasure, team_deletion
from athanor.jobs.projects import project_of
from athanor.jobs.selectors import job_of

PERMANENTLY = OpenApiParameter(
    "permanently",
    OpenApiTypes.BOOL,
    description="`true`: remove the objects at the next sweep, without an undo window. For administrators of the team.",
)


def _job(principal: Principal, identifier: str) -> Target:
    return job_of(principal, identifier)


FIND = {
    "jobs": _job,
    "artifacts": selectors.artifact_of,
    "checkpoints": selectors.checkpoint_of,
    "datasets": selectors.dataset_of,
    "projects": project_of,
}


def delete(request: Request, collection: str, identifier: str) -> Response:
    """Delete an object of a collection. Return the response."""
    principal = get_principal(request)
    target = FIND[collection](principal, identifier)
    team_id = target.team_id if hasattr(target, "team_id") else target.owner.id
    check_may_write(principal, team_id)
    permanently = read_flag(request, PERMANENTLY.name)
    if permanently or collection == "projects":
        check(principal, Permission.MANAGE, team_id)
    return Response(DeletionSerializer(deletions.delete(target, principal.user, permanently=permanently)).data)


def delete_team(request: Request, team_id: str) -> Response:
    """Delete a team. Return the response. Raises Forbidden unless a platform administrator asks."""
    principal = get_principal(request)
    team = team_for(principal, Permission.MANAGE, team_id)
    check_platform(principal, Permission.MANAGE_TEAMS)
    return Response(
        DeletionSerializer(
            team_deletion.delete(team, principal.user, permanently=read_flag(request, PERMANENTLY.name))
        ).data
    )


PREVIEW = {200: DeletionPreviewSerializer, **PROBLEMS}


def _preview(request: Request, collection: str, identifier: str) -> Response:
    target = FIND[collection](get_principal(request), identifier)
    return Response(DeletionPreviewSerializer(deletions.preview(target)).data)


class JobDeletionView(APIView):
    """Requests to `/jobs/{job_id}/deletion`."""

    @extend_schema(operation_id="jobs_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, job_id: str) -> Response:
        """Preview the deletion of what a job stored.

        Returns what deleting would remove and which jobs depend on it. Nothing is deleted."""
        return _preview(request, "jobs", job_id)


class ArtifactDeletionView(APIView):
    """Requests to `/artifacts/{artifact_id}/deletion`."""

    @extend_schema(operation_id="artifacts_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, artifact_id: str) -> Response:
        """Preview the deletion of an artifact.

        Returns what deleting would remove and which jobs depend on it. Nothing is deleted."""
        return _preview(request, "artifacts", artifact_id)


class CheckpointDeletionView(APIView):
    """Requests to `/checkpoints/{checkpoint_id}/deletion`."""

    @extend_schema(operation_id="checkpoints_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, checkpoint_id: str) -> Response:
        """Preview the deletion of a checkpoint.

        Returns what deleting would remove and which jobs depend on it. Nothing is deleted."""
        return _preview(request, "checkpoints", checkpoint_id)


class DatasetDeletionView(APIView):
    """Requests to `/datasets/{dataset_id}/deletion`."""

    @extend_schema(operation_id="datasets_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, dataset_id: str) -> Response:
        """Preview the deletion of a data set.

        Returns what deleting would remove and which jobs depend on it. Nothing is deleted."""
        return _preview(request, "datasets", dataset_id)


class ProjectDeletionView(APIView):
    """Requests to `/projects/{project_id}/deletion`."""

    @extend_schema(operation_id="projects_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, project_id: str) -> Response:
        """Preview the deletion of a project.

        Returns what deleting the project and everything that its jobs stored would remove, and which jobs depend on
        it. Nothing is deleted."""
        return _preview(request, "projects", project_id)


class TeamDeletionView(APIView):
    """Requests to `/teams/{team_id}/deletion`."""

    @extend_schema(operation_id="teams_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, team_id: str) -> Response:
        """Preview the deletion of a team.

        Returns what deleting and erasing the team would remove, and the unfinished jobs that prevent it. Nothing is
        deleted. For administrators of the team and of the platform."""
        team = team_for(get_principal(request), Permission.MANAGE, team_id)
        return Response(DeletionPreviewSerializer(team_deletion.preview(team)).data)


class CheckpointView(APIView):
    """Requests to `/checkpoints/{checkpoint_id}`."""

    @extend_schema(
        operation_id="checkpoints_delete", parameters=[PERMANENTLY], responses={200: DeletionSerializer, **PROBLEMS}
    )
    def delete(self, request: Request, checkpoint_id: str) -> Response:
        """Delete a checkpoint.

        Deletes one checkpoint of a job. One that an unfinished job needs is refused with 409. The deletion can be
        undone until the undo window ends. Needs the role member in the team, and the role admin for `permanently`."""
        return delete(request, "checkpoints", checkpoint_id)


class DeletionsView(APIView):
    """Requests to `/deletions`."""

    @extend_schema(
        operation_id="deletions_list",
        parameters=PAGE_PARAMETERS,
        responses={200: page_serializer("DeletionPage", DeletionSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List deletions.

        Returns the deletions of your teams, newest first, including those that are complete or were undone."""
        found, next_cursor = paginate(request, deletions.deletions_of(get_principal(request)))
        return paginated_response(serialize_many(DeletionSerializer, found), next_cursor)


class DeletionRestoreView(APIView):
    """Requests to `/deletions/{deletion_id}:restore`."""

    @extend_schema(operation_id="deletions_restore", request=None, responses={200: DeletionSerializer, **PROBLEMS})
    def post(self, request: Request, deletion_id: str) -> Response:
        """Undo a deletion.

        Restores what was deleted, as long as its objects have not been removed. Needs the role member in the team; a
        team is restored by platform administrators."""
        principal = get_principal(request)
        row = deletions.deletion_of(principal, deletion_id)
        if row.kind == Deletion.Kind.TEAM:
            check_platform(principal, Permission.MANAGE_TEAMS)
        else:
            check_may_write(principal, row.team_id)
        return Response(DeletionSerializer(deletions.restore(row, principal.user)).data)


class DeletionPurgeView(APIView):
    """Requests to `/deletions/{deletion_id}:purge`."""

    @extend_schema(
        operation_id="deletions_purge",
        request=None,
        responses={200: DeletionSerializer, **PROBLEMS},
    )
    def post(self, request: Request, deletion_id: str) -> Response:
        """End the undo window of a deletion.

        Has the objects removed by the next sweep instead of at the end of the undo window. This cannot be undone.
        For administrators of the team; for a team's deletion, of the platform too."""
        principal = get_principal(request)
        row = deletions.deletion_of(principal, deletion_id)
        if row.kind == Deletion.Kind.TEAM:
            check_platform(principal, Permission.MANAGE_TEAMS)
        check(principal, Permission.MANAGE, row.team_id)
        return Response(DeletionSerializer(deletions.expedite(row, principal.user)).data)


class DeletionCertificateView(APIView):
    """Requests to `/deletions/{deletion_id}/certificate`."""

    @extend_schema(
        operation_id="deletions_certificate",
        responses={200: CertificateSerializer, **PROBLEMS},
    )
    def get(self, request: Request, deletion_id: str) -> Response:
        """Get the certificate of a team's erasure.

        Returns the authenticated record of what was erased and when, once the erasure is complete. `manage.py
        verify_erasure` checks it. For platform administrators."""
        row = deletions.deletion_of(get_principal(request), deletion_id)
        return Response(erasure.certificate_of(row))
