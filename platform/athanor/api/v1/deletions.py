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
from athanor.compliance import erasure, team_deletion
from athanor.core.errors import FieldProblem, Invalid
from athanor.jobs.projects import project_of
from athanor.jobs.selectors import job_of

PERMANENTLY = OpenApiParameter(
    "permanently",
    OpenApiTypes.BOOL,
    description="`true`: remove the objects at the next sweep, without an undo window. For administrators of the team.",
)


class DeletionSerializer(serializers.Serializer[Deletion]):
    """A deletion, which can be undone until its objects are removed."""

    id = serializers.CharField()
    team = NamedSerializer()
    kind = serializers.ChoiceField(choices=Deletion.Kind.choices, help_text="Kind of what was deleted.")
    target = serializers.CharField(source="target_id", help_text="Id of what was deleted.")
    name = serializers.CharField(help_text="Name of what was deleted.")
    size_bytes = serializers.IntegerField(help_text="Bytes that the deletion releases when the objects are removed.")
    state = serializers.ChoiceField(
        choices=["pending", "purging", "purged", "restored"],
        help_text=(
            "`pending` until the undo window ends, `purging` while objects are removed, `purged` when "
            "they are gone, `restored` if it was undone."
        ),
    )
    deleted_by = serializers.SerializerMethodField(
        help_text="Username of the person or service account that deleted it. Empty if the account is gone."
    )
    created_at = serializers.DateTimeField()
    purge_after = serializers.DateTimeField(
        help_text="End of the undo window, ISO 8601 in UTC. It can be restored until then."
    )

    def get_deleted_by(self, row: Deletion) -> str:
        return row.deleted_by.username if row.deleted_by else ""


class DependentSerializer(serializers.Serializer[Any]):
    """A job that depends on what would be deleted."""

    id = serializers.CharField(help_text="Id of the job.")
    name = serializers.CharField(help_text="Name of the job.")
    status = serializers.CharField(help_text="Status of the job.")


class DeletionPreviewSerializer(serializers.Serializer[Any]):
    """What a deletion would remove."""

    kind = serializers.CharField(help_text="Kind of what would be deleted.")
    target = serializers.CharField(source="target_id", help_text="Id of what would be deleted.")
    name = serializers.CharField(help_text="Name of what would be deleted.")
    size_bytes = serializers.IntegerField(help_text="Bytes that are released when the objects are removed.")
    artifacts = serializers.IntegerField(source="num_artifacts", help_text="Number of artifacts.")
    checkpoints = serializers.IntegerField(source="num_checkpoints", help_text="Number of checkpoints.")
    preparations = serializers.IntegerField(
        source="num_preparations", help_text="Number of tokenised forms of a data set."
    )
    blocked_by = DependentSerializer(
        many=True,
        help_text=("Unfinished jobs that need it. While there are any, it cannot be deleted. At most 20 are listed."),
    )
    used_by = DependentSerializer(
        many=True, help_text="Finished jobs that refer to it. Their records stay. At most 20 are listed."
    )
    undo_days = serializers.IntegerField(help_text="Days during which the deletion can be undone.")
    contents = serializers.DictField(
        child=serializers.IntegerField(),
        help_text=(
            "What else a project or a team contains: a number by kind, such as jobs, members, secrets or budgets."
        ),
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
        """Preview the deletion of what a job stored.

        Returns what deleting would remove and which jobs depend on it. Nothing is deleted."""
        return _preview(request, "jobs", job_id)


class ArtifactDeletionView(APIView):
    @extend_schema(operation_id="artifacts_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, artifact_id: str) -> Response:
        """Preview the deletion of an artifact.

        Returns what deleting would remove and which jobs depend on it. Nothing is deleted."""
        return _preview(request, "artifacts", artifact_id)


class CheckpointDeletionView(APIView):
    @extend_schema(operation_id="checkpoints_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, checkpoint_id: str) -> Response:
        """Preview the deletion of a checkpoint.

        Returns what deleting would remove and which jobs depend on it. Nothing is deleted."""
        return _preview(request, "checkpoints", checkpoint_id)


class DatasetDeletionView(APIView):
    @extend_schema(operation_id="datasets_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, dataset_id: str) -> Response:
        """Preview the deletion of a data set.

        Returns what deleting would remove and which jobs depend on it. Nothing is deleted."""
        return _preview(request, "datasets", dataset_id)


class ProjectDeletionView(APIView):
    @extend_schema(operation_id="projects_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, project_id: str) -> Response:
        """Preview the deletion of a project.

        Returns what deleting the project and everything that its jobs stored would remove, and which jobs depend on
        it. Nothing is deleted."""
        return _preview(request, "projects", project_id)


class TeamDeletionView(APIView):
    @extend_schema(operation_id="teams_deletion_preview", responses=PREVIEW)
    def get(self, request: Request, team_id: str) -> Response:
        """Preview the deletion of a team.

        Returns what deleting and erasing the team would remove, and the unfinished jobs that prevent it. Nothing is
        deleted. For administrators of the team and of the platform."""
        team = team_for(principal(request), Permission.MANAGE, team_id)
        return Response(DeletionPreviewSerializer(team_deletion.preview(team)).data)


class CheckpointView(APIView):
    @extend_schema(
        operation_id="checkpoints_delete", parameters=[PERMANENTLY], responses={200: DeletionSerializer, **PROBLEMS}
    )
    def delete(self, request: Request, checkpoint_id: str) -> Response:
        """Delete a checkpoint.

        Deletes one checkpoint of a job. One that an unfinished job needs is refused with 409. The deletion can be
        undone until the undo window ends. Needs the role member in the team, and the role admin for `permanently`."""
        return delete(request, "checkpoints", checkpoint_id)


class DatasetView(APIView):
    @extend_schema(
        operation_id="datasets_delete", parameters=[PERMANENTLY], responses={200: DeletionSerializer, **PROBLEMS}
    )
    def delete(self, request: Request, dataset_id: str) -> Response:
        """Delete a data set.

        Deletes the data set and its tokenised forms. One that an unfinished job needs is refused with 409. The
        deletion can be undone until the undo window ends. Needs the role member in the team, and the role admin for
        `permanently`."""
        return delete(request, "datasets", dataset_id)


class DeletionsView(APIView):
    @extend_schema(
        operation_id="deletions_list",
        parameters=PAGED,
        responses={200: page_of("DeletionPage", DeletionSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List deletions.

        Returns the deletions of your teams, newest first, including those that are complete or were undone."""
        found, next_cursor = page(request, deletions.deletions_of(principal(request)))
        return Response(listed(serialize_many(DeletionSerializer, found), next_cursor))


class DeletionRestoreView(APIView):
    @extend_schema(operation_id="deletions_restore", request=None, responses={200: DeletionSerializer, **PROBLEMS})
    def post(self, request: Request, deletion_id: str) -> Response:
        """Undo a deletion.

        Restores what was deleted, as long as its objects have not been removed. Needs the role member in the team; a
        team is restored by platform administrators."""
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
    )
    def post(self, request: Request, deletion_id: str) -> Response:
        """End the undo window of a deletion.

        Has the objects removed by the next sweep instead of at the end of the undo window. This cannot be undone.
        For administrators of the team; for a team's deletion, of the platform too."""
        who = principal(request)
        row = deletions.deletion_of(who, deletion_id)
        if row.kind == Deletion.Kind.TEAM:
            check_platform(who, Permission.MANAGE_TEAMS)
        check(who, Permission.MANAGE, row.team_id)
        return Response(DeletionSerializer(deletions.expedite(row, who.user)).data)


class ErasedKeysSerializer(serializers.Serializer[Any]):
    """Keys of one kind that an erasure destroyed."""

    count = serializers.IntegerField(help_text="Number of keys of this kind.")
    sha256_of_wrapped = serializers.ListField(
        child=serializers.CharField(), help_text="SHA-256 of each key as it was stored, encrypted; hexadecimal, sorted."
    )


class ErasedObjectsSerializer(serializers.Serializer[Any]):
    """Objects that an erasure removed."""

    count = serializers.IntegerField(help_text="Number of objects that were removed.")
    bytes = serializers.IntegerField(help_text="Their size in bytes.")
    prefixes_empty_at = serializers.DateTimeField(
        help_text=("Time at which nothing was left below the team's prefixes of the object store, ISO 8601 in UTC.")
    )


class AuditPlaceSerializer(serializers.Serializer[Any]):
    """A record of the audit trail."""

    seq = serializers.IntegerField(help_text="Number of the record in the audit trail.")
    digest = serializers.CharField(help_text="Digest of the record, hexadecimal.")


class CertificateSerializer(serializers.Serializer[Any]):
    """A certificate of erasure. `mac` covers all other fields as they are returned."""

    kind = serializers.CharField(help_text='Kind of the document: "athanor certificate of erasure".')
    version = serializers.IntegerField(help_text="Version of the document's format.")
    team = NamedSerializer(help_text="The erased team.")
    deletion = serializers.CharField(help_text="Id of the deletion.")
    deleted_by = serializers.CharField(
        allow_blank=True, help_text="Username of the person who deleted the team. Empty if the account is gone."
    )
    deleted_at = serializers.DateTimeField(help_text="Time of the deletion, ISO 8601 in UTC.")
    keys_destroyed_at = serializers.DateTimeField(
        help_text=(
            "Time at which the keys were destroyed, ISO 8601 in UTC. From then on the content could not be decrypted."
        )
    )
    keys = serializers.DictField(child=ErasedKeysSerializer(), help_text="The destroyed keys, by kind.")
    objects = ErasedObjectsSerializer(help_text="The removed objects.")
    records = serializers.DictField(child=serializers.IntegerField(), help_text="Number of removed records, by kind.")
    remains = serializers.ListField(
        child=serializers.CharField(), help_text="What the erasure does not reach, a sentence each."
    )
    completed_at = serializers.DateTimeField(help_text="Time at which the erasure was complete, ISO 8601 in UTC.")
    audit = AuditPlaceSerializer(help_text="The record `team.erased` of the audit trail.")
    key = serializers.CharField(help_text="Key of the audit trail, encrypted with the master key; hexadecimal.")
    mac = serializers.CharField(
        help_text="Message authentication code of all other fields under that key, hexadecimal."
    )


class DeletionCertificateView(APIView):
    @extend_schema(
        operation_id="deletions_certificate",
        responses={200: CertificateSerializer, **PROBLEMS},
    )
    def get(self, request: Request, deletion_id: str) -> Response:
        """Get the certificate of a team's erasure.

        Returns the authenticated record of what was erased and when, once the erasure is complete. `manage.py
        verify_erasure` checks it. For platform administrators."""
        row = deletions.deletion_of(principal(request), deletion_id)
        return Response(erasure.certificate_of(row))
