"""Deleting jobs, artifacts, checkpoints, data sets, projects and teams: the preview, the deletion, its undoing."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check, check_may_write, check_platform, principal, team_for
from athanor.api.pagination import PAGED, listed, page, serialize_many
from athanor.api.v1.shapes import PROBLEMS, NamedSerializer, page_of
from athanor.artifacts import deletions, selectors
from athanor.artifacts.deletions import Target
from athanor.artifacts.models import Deletion
from athanor.core.errors import FieldProblem, Invalid
from athanor.jobs.projects import project_of
from athanor.jobs.selectors import job_of
from athanor.operations import erasure, team_deletion

PERMANENTLY = OpenApiParameter(
    "permanently",
    OpenApiTypes.BOOL,
    description="true: delete the objects at the next sweep, without a window for undoing it; for administrators",
)


class DeletionSerializer(serializers.Serializer[Deletion]):
    id = serializers.CharField()
    team = NamedSerializer()
    kind = serializers.ChoiceField(choices=Deletion.Kind.choices)
    target = serializers.CharField(source="target_id")
    name = serializers.CharField()
    size_bytes = serializers.IntegerField()
    state = serializers.ChoiceField(choices=["pending", "purging", "purged", "restored"])
    deleted_by = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField()
    purge_after = serializers.DateTimeField(help_text="until then it can be restored")

    def get_deleted_by(self, row: Deletion) -> str:
        return row.deleted_by.username if row.deleted_by else ""


class DependentSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    name = serializers.CharField()
    status = serializers.CharField()


class DeletionPreviewSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField()
    target = serializers.CharField(source="target_id")
    name = serializers.CharField()
    size_bytes = serializers.IntegerField(help_text="returned to the quota when the objects are gone")
    artifacts = serializers.IntegerField(source="num_artifacts")
    checkpoints = serializers.IntegerField(source="num_checkpoints")
    preparations = serializers.IntegerField(source="num_preparations")
    blocked_by = DependentSerializer(many=True, help_text="unfinished jobs that need it: it cannot be deleted")
    used_by = DependentSerializer(many=True, help_text="finished jobs that refer to it; their records stay")
    undo_days = serializers.IntegerField()
    contents = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="what else a project or a team contains, by kind: jobs, members, secrets, budgets and so on",
    )


def _job(who: Principal, identifier: str) -> Target:
    return job_of(who, identifier)


FIND = {
    "jobs": _job,
    "artifacts": selectors.artifact_of,
    "checkpoints": selectors.checkpoint_of,
    "datasets": selectors.dataset_of,
    "projects": project_of,
}


def delete(request: Request, collection: str, identifier: str) -> Response:
    """Answer DELETE of one thing of a collection."""
    who = principal(request)
    target = FIND[collection](who, identifier)
    team_id = target.team_id if hasattr(target, "team_id") else target.job.team_id
    check_may_write(who, team_id)
    permanently = _is_permanent(request)
    if permanently or collection == "projects":
        check(who, Permission.MANAGE, team_id)
    return Response(DeletionSerializer(deletions.delete(target, who.user, permanently=permanently)).data)


def delete_team(request: Request, team_id: str) -> Response:
    """Answer DELETE of a team: for platform administrators."""
    who = principal(request)
    team = team_for(who, Permission.MANAGE, team_id)
    check_platform(who, Permission.MANAGE_TEAMS)
    return Response(DeletionSerializer(team_deletion.delete(team, who.user, permanently=_is_permanent(request))).data)


def _is_permanent(request: Request) -> bool:
    asked = request.query_params.get("permanently", "false")
    if asked not in ("true", "false"):
        detail = f"permanently={asked!r} is neither true nor false"
        problem = FieldProblem("/permanently", "boolean", detail)
        raise Invalid("invalid_parameter", detail, remedy="give permanently=true, or leave it out", problems=(problem,))
    return asked == "true"


PREVIEW = {200: DeletionPreviewSerializer, **PROBLEMS}


def _preview(request: Request, collection: str, identifier: str) -> Response:
    target = FIND[collection](principal(request), identifier)
    return Response(DeletionPreviewSerializer(deletions.preview(target)).data)


class JobDeletionView(APIView):
    @extend_schema(operation_id="jobs_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, job_id: str) -> Response:
        """What deleting all that the job stored would remove, and which jobs depend on it."""
        return _preview(request, "jobs", job_id)


class ArtifactDeletionView(APIView):
    @extend_schema(operation_id="artifacts_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, artifact_id: str) -> Response:
        """What deleting the artifact would remove, and which jobs depend on it."""
        return _preview(request, "artifacts", artifact_id)


class CheckpointDeletionView(APIView):
    @extend_schema(operation_id="checkpoints_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, checkpoint_id: str) -> Response:
        """What deleting the checkpoint would remove, and which jobs depend on it."""
        return _preview(request, "checkpoints", checkpoint_id)


class DatasetDeletionView(APIView):
    @extend_schema(operation_id="datasets_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, dataset_id: str) -> Response:
        """What deleting the data set would remove, and which jobs depend on it."""
        return _preview(request, "datasets", dataset_id)


class ProjectDeletionView(APIView):
    @extend_schema(operation_id="projects_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, project_id: str) -> Response:
        """What deleting the project and all that its jobs stored would remove, and which jobs depend on it."""
        return _preview(request, "projects", project_id)


class TeamDeletionView(APIView):
    @extend_schema(operation_id="teams_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, team_id: str) -> Response:
        """What deleting and erasing the team would remove, and the unfinished jobs that forbid it. For administrators
        of the team and of the platform."""
        team = team_for(principal(request), Permission.MANAGE, team_id)
        return Response(DeletionPreviewSerializer(team_deletion.preview(team)).data)


class CheckpointView(APIView):
    @extend_schema(
        operation_id="checkpoints_delete", parameters=[PERMANENTLY], responses={200: DeletionSerializer, **PROBLEMS}
    )
    def delete(self, request: Request, checkpoint_id: str) -> Response:
        return delete(request, "checkpoints", checkpoint_id)


class DatasetView(APIView):
    @extend_schema(
        operation_id="datasets_delete", parameters=[PERMANENTLY], responses={200: DeletionSerializer, **PROBLEMS}
    )
    def delete(self, request: Request, dataset_id: str) -> Response:
        return delete(request, "datasets", dataset_id)


class DeletionsView(APIView):
    @extend_schema(
        operation_id="deletions_list",
        parameters=PAGED,
        responses={200: page_of("DeletionPage", DeletionSerializer), **PROBLEMS},
        description="Newest first, with those that are over.",
    )
    def get(self, request: Request) -> Response:
        found, next_cursor = page(request, deletions.deletions_of(principal(request)))
        return Response(listed(serialize_many(DeletionSerializer, found), next_cursor))


class DeletionRestoreView(APIView):
    @extend_schema(operation_id="deletions_restore", request=None, responses={200: DeletionSerializer, **PROBLEMS})
    def post(self, request: Request, deletion_id: str) -> Response:
        who = principal(request)
        row = deletions.deletion_of(who, deletion_id)
        if row.kind == Deletion.Kind.TEAM:
            check_platform(who, Permission.MANAGE_TEAMS)
        else:
            check_may_write(who, row.team_id)
        return Response(DeletionSerializer(deletions.restore(row, who.user)).data)


class DeletionPurgeView(APIView):
    @extend_schema(
        operation_id="deletions_purge",
        request=None,
        responses={200: DeletionSerializer, **PROBLEMS},
        description="Ends the window for undoing it; for administrators of the team.",
    )
    def post(self, request: Request, deletion_id: str) -> Response:
        who = principal(request)
        row = deletions.deletion_of(who, deletion_id)
        if row.kind == Deletion.Kind.TEAM:
            check_platform(who, Permission.MANAGE_TEAMS)
        check(who, Permission.MANAGE, row.team_id)
        return Response(DeletionSerializer(deletions.expedite(row, who.user)).data)


class ErasedKeysSerializer(serializers.Serializer[Any]):
    count = serializers.IntegerField()
    sha256_of_wrapped = serializers.ListField(child=serializers.CharField())


class ErasedObjectsSerializer(serializers.Serializer[Any]):
    count = serializers.IntegerField()
    bytes = serializers.IntegerField()
    prefixes_empty_at = serializers.DateTimeField(help_text="when nothing was left below the team's prefixes")


class AuditPlaceSerializer(serializers.Serializer[Any]):
    seq = serializers.IntegerField()
    digest = serializers.CharField()


class CertificateSerializer(serializers.Serializer[Any]):
    """A certificate of erasure. `mac` covers all other fields as they are answered."""

    kind = serializers.CharField()
    version = serializers.IntegerField()
    team = NamedSerializer()
    deletion = serializers.CharField()
    deleted_by = serializers.CharField(allow_blank=True)
    deleted_at = serializers.DateTimeField()
    keys_destroyed_at = serializers.DateTimeField()
    keys = serializers.DictField(child=ErasedKeysSerializer(), help_text="by kind")
    objects = ErasedObjectsSerializer()
    records = serializers.DictField(child=serializers.IntegerField())
    remains = serializers.ListField(child=serializers.CharField(), help_text="what the erasure does not reach")
    completed_at = serializers.DateTimeField()
    audit = AuditPlaceSerializer(help_text="the record team.erased of the audit trail")
    key = serializers.CharField(help_text="the key of the audit trail, wrapped by the master key")
    mac = serializers.CharField()


class DeletionCertificateView(APIView):
    @extend_schema(
        operation_id="deletions_certificate",
        responses={200: CertificateSerializer, **PROBLEMS},
        description="Of a team that is erased, for platform administrators. `manage.py verify_erasure` checks it.",
    )
    def get(self, request: Request, deletion_id: str) -> Response:
        row = deletions.deletion_of(principal(request), deletion_id)
        return Response(erasure.certificate_of(row))
