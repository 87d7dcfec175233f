"""Checkpoints and artifacts: list, show, presigned download, and an archive decrypted as it streams."""

import tarfile
from collections.abc import Callable, Iterator
from typing import Any

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.models import User
from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check, get_principal
from athanor.api.bodies import parse_body
from athanor.api.pagination import paginated_response
from athanor.api.sparse import FIELDS, serialize
from athanor.api.transfers import Download
from athanor.api.v1 import deletions
from athanor.api.v1.serializers.artifacts import (
    ARTIFACT_DOWNLOAD,
    CHECKPOINT_DOWNLOAD,
    ActedCheckpointSerializer,
    ArtifactSerializer,
    CheckpointReasonSerializer,
    CheckpointSerializer,
)
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.deletions import DeletionSerializer
from athanor.artifacts import checkpoint_states, keys, manifests, selectors, services, signing_keys, storage
from athanor.artifacts.models import Artifact, Checkpoint
from athanor.jobs.selectors import job_of
from trainer.contract.manifest import StoredFile
from trainer.contract.model_signature import SIGNATURE_NAME

TAR_BLOCK = 512


class CheckpointsView(APIView):
    """Requests to `/jobs/{job_id}/checkpoints`."""

    @extend_schema(
        operation_id="jobs_checkpoints",
        parameters=[FIELDS],
        responses={
            200: page_serializer("CheckpointPage", CheckpointSerializer),
            **PROBLEMS,
        },
    )
    def get(self, request: Request, job_id: str) -> Response:
        """List the checkpoints of a job.

        Returns the checkpoints that are stored, also those from which nothing resumes (`state`). Those that retention
        or a deletion removed are not listed."""
        rows = selectors.checkpoints_of(job_of(get_principal(request), job_id))
        return paginated_response(serialize(request, CheckpointSerializer, rows, many=True))


class ArtifactsView(APIView):
    """Requests to `/jobs/{job_id}/artifacts`."""

    @extend_schema(
        operation_id="jobs_artifacts",
        parameters=[FIELDS],
        responses={
            200: page_serializer("ArtifactPage", ArtifactSerializer),
            **PROBLEMS,
        },
    )
    def get(self, request: Request, job_id: str) -> Response:
        """List the artifacts of a job.

        Returns the models, logs and profiles that the job stored and that were not deleted."""
        rows = selectors.artifacts_of(job_of(get_principal(request), job_id))
        return paginated_response(serialize(request, ArtifactSerializer, rows, many=True))


class ArtifactView(APIView):
    """Requests to `/artifacts/{artifact_id}`."""

    @extend_schema(operation_id="artifacts_show", responses={200: ArtifactSerializer, **PROBLEMS})
    def get(self, request: Request, artifact_id: str) -> Response:
        """Show an artifact.

        Returns the artifact with its files, also that of a version that another team shares. Its content is downloaded
        by `POST /artifacts/{artifact_id}:download` or
        as an archive."""
        return Response(ArtifactSerializer(selectors.readable_artifact_of(get_principal(request), artifact_id)).data)

    @extend_schema(
        operation_id="artifacts_delete",
        parameters=[deletions.PERMANENTLY],
        responses={200: DeletionSerializer, **PROBLEMS},
    )
    def delete(self, request: Request, artifact_id: str) -> Response:
        """Delete an artifact.

        Deletes one model, log or profile of a job. The deletion can be undone until the undo window ends. Needs the
        role member in the team, and the role admin for `permanently`."""
        return deletions.delete(request, "artifacts", artifact_id)


class ArtifactDownloadView(APIView):
    """Requests to `/artifacts/{artifact_id}:download`."""

    @extend_schema(
        operation_id="artifacts_download",
        request=None,
        responses={
            200: ARTIFACT_DOWNLOAD,
            **PROBLEMS,
        },
    )
    def post(self, request: Request, artifact_id: str) -> Response:
        """Get what is needed to download an artifact.

        Returns presigned URLs of the encrypted parts and the key that decrypts them. Check `manifest` before you use
        `files`; `trainer.contract.encryption` does both. The request is recorded in the audit trail. A token needs the
        scope `artifacts`."""
        principal = get_principal(request)
        row = selectors.readable_artifact_of(principal, artifact_id)
        return Response({"artifact": ArtifactSerializer(row).data, **_download(principal, row)})


class CheckpointDownloadView(APIView):
    """Requests to `/checkpoints/{checkpoint_id}:download`."""

    @extend_schema(
        operation_id="checkpoints_download",
        request=None,
        responses={
            200: CHECKPOINT_DOWNLOAD,
            **PROBLEMS,
        },
    )
    def post(self, request: Request, checkpoint_id: str) -> Response:
        """Get what is needed to download a checkpoint.

        Returns presigned URLs of the encrypted parts and the key that decrypts them. Check `manifest` before you use
        `files`; `trainer.contract.encryption` does both. The request is recorded in the audit trail. A token needs the
        scope `artifacts`."""
        principal = get_principal(request)
        row = selectors.checkpoint_of(principal, checkpoint_id)
        return Response({"checkpoint": CheckpointSerializer(row).data, **_download(principal, row)})


class ArtifactArchiveView(APIView):
    """Requests to `/artifacts/{artifact_id}/archive`."""

    @extend_schema(
        operation_id="artifacts_archive",
        responses={
            (200, "application/x-tar"): OpenApiResponse(OpenApiTypes.BINARY, description="The decrypted files."),
            **PROBLEMS,
        },
    )
    def get(self, request: Request, artifact_id: str) -> StreamingHttpResponse:
        """Download an artifact as a tar archive.

        Streams all files, decrypted and verified part by part, and `model.sig` of a model that can be signed. If a part
        cannot be verified the connection is closed, so an incomplete archive is never mistaken for a complete one. The
        request is recorded in the audit trail. A token needs the scope `artifacts`."""
        principal = get_principal(request)
        row = selectors.readable_artifact_of(principal, artifact_id)
        return _archive(principal, row, row.kind)


class CheckpointArchiveView(APIView):
    """Requests to `/checkpoints/{checkpoint_id}/archive`."""

    @extend_schema(
        operation_id="checkpoints_archive",
        responses={
            (200, "application/x-tar"): OpenApiResponse(OpenApiTypes.BINARY, description="The decrypted files."),
            **PROBLEMS,
        },
    )
    def get(self, request: Request, checkpoint_id: str) -> StreamingHttpResponse:
        """Download a checkpoint as a tar archive.

        Streams all files, decrypted and verified part by part. If a part cannot be verified the connection is
        closed, so an incomplete archive is never mistaken for a complete one. The request is recorded in the audit
        trail. A token needs the scope `artifacts`."""
        principal = get_principal(request)
        row = selectors.checkpoint_of(principal, checkpoint_id)
        return _archive(principal, row, f"checkpoint-{row.step}")


ACTED = {200: ActedCheckpointSerializer, **PROBLEMS}


def _act(request: Request, checkpoint_id: str, action: Callable[[Checkpoint, str, User], Checkpoint]) -> Response:
    principal = get_principal(request)
    row = selectors.any_checkpoint_of(principal, checkpoint_id)
    check(principal, Permission.MANAGE, row.job.team_id)
    reason = parse_body(request, CheckpointReasonSerializer)["reason"]
    return Response(ActedCheckpointSerializer(action(row, reason, principal.user)).data)


class CheckpointDamagedView(APIView):
    """Requests to `/checkpoints/{checkpoint_id}:mark_damaged`."""

    @extend_schema(operation_id="checkpoints_mark_damaged", request=CheckpointReasonSerializer, responses=ACTED)
    def post(self, request: Request, checkpoint_id: str) -> Response:
        """Mark a checkpoint as damaged.

        Nothing resumes from it, and no model is exported from it, until it is marked as intact. A running attempt
        continues. A checkpoint that is damaged already is returned unchanged; one that is retired or deleted is
        refused with 409. For administrators of the team."""
        return _act(request, checkpoint_id, checkpoint_states.mark_damaged)


class CheckpointIntactView(APIView):
    """Requests to `/checkpoints/{checkpoint_id}:mark_intact`."""

    @extend_schema(operation_id="checkpoints_mark_intact", request=CheckpointReasonSerializer, responses=ACTED)
    def post(self, request: Request, checkpoint_id: str) -> Response:
        """Mark a checkpoint as intact.

        Revokes a finding of damage that was wrong, or that was repaired in the object store: resumes use the checkpoint
        again, and verify it as always. An intact checkpoint is returned unchanged. Refused with 409: one that is
        retired, deleted, diverged or not authentic, or if a part is missing in the store or has another size.
        For administrators of the team."""
        return _act(request, checkpoint_id, checkpoint_states.mark_intact)


class CheckpointRetireView(APIView):
    """Requests to `/checkpoints/{checkpoint_id}:retire`."""

    @extend_schema(operation_id="checkpoints_retire", request=CheckpointReasonSerializer, responses=ACTED)
    def post(self, request: Request, checkpoint_id: str) -> Response:
        """Retire a checkpoint.

        Gives it up as retention does: its objects are deleted at the next sweep, which cannot be undone. A retired
        checkpoint is returned unchanged. One that is deleted, that an unfinished job resumes from or exports, or
        without which that job would train from its first step again is refused with 409. For administrators of the
        team."""
        return _act(request, checkpoint_id, checkpoint_states.retire)


def _archive(principal: Principal, row: Artifact | Checkpoint, what: str) -> StreamingHttpResponse:
    _hand_out(principal, row)
    files = manifests.of_stored(row).files
    signature = signing_keys.signature_file(row, principal.user) if isinstance(row, Artifact) else None
    response = StreamingHttpResponse(
        Download(principal.user, _tar(row, files, signature)), content_type="application/x-tar"
    )
    response["Content-Disposition"] = f'attachment; filename="{_name(row)}-{what}.tar"'
    entries = [(file.path, file.size) for file in files]
    if signature is not None:
        entries.append((SIGNATURE_NAME, len(signature)))
    sizes = (len(_tar_header(row, path, size)) + size + -size % TAR_BLOCK for path, size in entries)
    response["Content-Length"] = str(sum(sizes) + 2 * TAR_BLOCK)
    return response


def _hand_out(principal: Principal, row: Artifact | Checkpoint) -> None:
    check(principal, Permission.DOWNLOAD, row.reader_id)
    services.hand_out(row, principal.user)


def _download(principal: Principal, row: Artifact | Checkpoint) -> dict[str, Any]:
    _hand_out(principal, row)
    expires_at = storage.presigned_until()  # of the first URL
    files = []
    manifest = manifests.of_stored(row)
    for file in manifest.files:
        parts = []
        for part in file.parts:
            url, _ = storage.presign("get", part.key)
            parts.append({**part.model_dump(), "url": url})
        files.append({"path": file.path, "size": file.size, "parts": parts})
    data_key = keys.data_key_of(row)
    return {
        "files": files,
        "manifest": manifest.model_dump(mode="json"),
        "data_key": data_key,
        "expires_at": expires_at,
    }


def _name(row: Artifact | Checkpoint) -> str:
    """Return the name of the job; of an artifact that is shared or imported, its own."""
    if isinstance(row, Artifact) and (row.granted is not None or row.job is None):
        return row.name
    assert row.job is not None, "a checkpoint has one"
    return row.job.name


def _tar(row: Artifact | Checkpoint, files: list[StoredFile], signature: bytes | None) -> Iterator[bytes]:
    """Yield a tar archive. A part that cannot be decrypted ends the connection: the archive is then incomplete."""
    for file in files:
        yield _tar_header(row, file.path, file.size)
        yield from services.opened_parts(row, file.path)
        yield bytes(-file.size % TAR_BLOCK)
    if signature is not None:
        yield _tar_header(row, SIGNATURE_NAME, len(signature))
        yield signature + bytes(-len(signature) % TAR_BLOCK)
    yield bytes(2 * TAR_BLOCK)


def _tar_header(row: Artifact | Checkpoint, path: str, size: int) -> bytes:
    header = tarfile.TarInfo(f"{_name(row)}/{path}")
    header.size, header.mtime = size, int(row.created_at.timestamp())
    return header.tobuf(tarfile.GNU_FORMAT)  # ustar ends at 8 GiB a file
