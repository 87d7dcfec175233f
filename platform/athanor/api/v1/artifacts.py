"""Checkpoints and artifacts: list, show, presigned download, and an archive decrypted as it streams."""

import tarfile
from collections.abc import Iterator
from typing import Any

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check, principal
from athanor.api.pagination import listed
from athanor.api.sparse import FIELDS, shown
from athanor.api.transfers import Download
from athanor.api.v1 import deletions
from athanor.api.v1.shapes import PROBLEMS, page_of
from athanor.artifacts import keys, manifests, selectors, services, storage
from athanor.artifacts.models import Artifact, Checkpoint
from athanor.core.errors import Conflict
from athanor.jobs.selectors import job_of
from trainer.contract.manifest import CheckpointManifest, Manifest, StoredFile

TAR_BLOCK = 512


class StoredFileSerializer(serializers.Serializer[Any]):
    """A file of a checkpoint or artifact."""

    path = serializers.CharField(help_text="Path of the file, relative, with forward slashes.")
    size = serializers.IntegerField(help_text="Size of the decrypted file in bytes.")


class StoredSerializer(serializers.Serializer[Any]):
    """What checkpoints and artifacts have in common."""

    id = serializers.CharField()
    job = serializers.CharField(source="job_id", help_text="Id of the job.")
    attempt = serializers.CharField(source="attempt_id", help_text="Id of the attempt that stored it.")
    step = serializers.IntegerField(help_text="Optimizer step at which it was stored.")
    size_bytes = serializers.IntegerField(
        help_text="Size of the encrypted content in bytes, as it counts towards the storage limit."
    )
    files = serializers.SerializerMethodField(help_text="Its files. Empty unless `authentic`.")
    authentic = serializers.SerializerMethodField(
        help_text=(
            "Whether the list of files is the one that the job registered. Content whose list is not "
            "authentic cannot be downloaded."
        )
    )
    metrics = serializers.DictField(
        child=serializers.FloatField(), help_text="Values by name, as the job reported them with it."
    )
    created_at = serializers.DateTimeField()

    @extend_schema_field(StoredFileSerializer(many=True))
    def get_files(self, row: Checkpoint | Artifact) -> list[dict[str, Any]]:
        manifest = self._manifest(row)
        return [{"path": file.path, "size": file.size} for file in manifest.files] if manifest else []

    def get_authentic(self, row: Checkpoint | Artifact) -> bool:
        return self._manifest(row) is not None

    def _manifest(self, row: Checkpoint | Artifact) -> Manifest | None:
        """Return the row's manifest, None when it is not authentic. Each is verified once in an answer."""
        context: Any = self.context  # the stubs know only that it can be read
        known: dict[str, Manifest | None] = context.setdefault("manifests", {})
        encryptors = context.setdefault("encryptors", {})
        if row.pk not in known:
            if row.job_id not in encryptors:
                encryptors[row.job_id] = manifests.encryptor_of(row.job)
            try:
                known[row.pk] = manifests.of_stored(row, encryptors[row.job_id])
            except Conflict:
                known[row.pk] = None
        return known[row.pk]


class ArtifactSerializer(StoredSerializer):
    """A model, log or profile that a job stored."""

    kind = serializers.ChoiceField(choices=Artifact.Kind.choices, help_text="`model`, `log` or `profile`.")
    name = serializers.CharField(help_text="Name of the artifact.")


class CheckpointSerializer(StoredSerializer):
    """A state that a job stored to resume from."""

    world_size = serializers.SerializerMethodField(help_text="Number of ranks that wrote it. Null unless `authentic`.")
    generation = serializers.IntegerField(
        help_text=(
            "Number of the worker group within the attempt that wrote it, from 0: it grows with each restart in place."
        )
    )

    def get_world_size(self, row: Checkpoint) -> int | None:
        manifest = self._manifest(row)
        return manifest.world_size if isinstance(manifest, CheckpointManifest) else None


class PartSerializer(serializers.Serializer[Any]):
    """An encrypted part of a file, one object of the object store."""

    key = serializers.CharField(help_text="Key of the object. Decryption needs it as associated data.")
    url = serializers.CharField(help_text="Presigned URL to download the encrypted part with GET until `expires_at`.")
    size = serializers.IntegerField(help_text="Size of the encrypted part in bytes.")
    sha256 = serializers.CharField(help_text="SHA-256 of the encrypted part, hexadecimal.")
    plaintext_size = serializers.IntegerField(help_text="Size of the decrypted part in bytes.")


class DownloadFileSerializer(StoredFileSerializer):
    """A file with its encrypted parts."""

    parts = PartSerializer(many=True, help_text="Parts of the file in order.")


DOWNLOAD = {
    "files": DownloadFileSerializer(many=True, help_text="Files with their encrypted parts."),
    "manifest": serializers.DictField(
        help_text="Paths, parts, sizes and digests, authenticated under the data key. Check it before you use `files`."
    ),
    "data_key": serializers.CharField(
        help_text="Key that decrypts the parts: a Tink streaming AEAD keyset as JSON, in base64."
    ),
    "expires_at": serializers.DateTimeField(help_text="Time until which the URLs work, ISO 8601 in UTC."),
}


class CheckpointsView(APIView):
    @extend_schema(
        operation_id="jobs_checkpoints",
        parameters=[FIELDS],
        responses={
            200: page_of("CheckpointPage", CheckpointSerializer),
            **PROBLEMS,
        },
    )
    def get(self, request: Request, job_id: str) -> Response:
        """List the checkpoints of a job.

        Returns the checkpoints that can be resumed from or downloaded. Those that retention or a deletion removed
        are not listed."""
        rows = selectors.checkpoints_of(job_of(principal(request), job_id))
        return Response(listed(shown(request, CheckpointSerializer, rows, many=True)))


class ArtifactsView(APIView):
    @extend_schema(
        operation_id="jobs_artifacts",
        parameters=[FIELDS],
        responses={
            200: page_of("ArtifactPage", ArtifactSerializer),
            **PROBLEMS,
        },
    )
    def get(self, request: Request, job_id: str) -> Response:
        """List the artifacts of a job.

        Returns the models, logs and profiles that the job stored and that were not deleted."""
        rows = selectors.artifacts_of(job_of(principal(request), job_id))
        return Response(listed(shown(request, ArtifactSerializer, rows, many=True)))


class ArtifactView(APIView):
    @extend_schema(operation_id="artifacts_show", responses={200: ArtifactSerializer, **PROBLEMS})
    def get(self, request: Request, artifact_id: str) -> Response:
        """Show an artifact.

        Returns the artifact with its files. Its content is downloaded by `POST /artifacts/{artifact_id}:download` or
        as an archive."""
        return Response(ArtifactSerializer(selectors.artifact_of(principal(request), artifact_id)).data)

    @extend_schema(
        operation_id="artifacts_delete",
        parameters=[deletions.PERMANENTLY],
        responses={200: deletions.DeletionSerializer, **PROBLEMS},
    )
    def delete(self, request: Request, artifact_id: str) -> Response:
        """Delete an artifact.

        Deletes one model, log or profile of a job. The deletion can be undone until the undo window ends. Needs the
        role member in the team, and the role admin for `permanently`."""
        return deletions.delete(request, "artifacts", artifact_id)


class ArtifactDownloadView(APIView):
    @extend_schema(
        operation_id="artifacts_download",
        request=None,
        responses={
            200: inline_serializer(
                "ArtifactDownload", {"artifact": ArtifactSerializer(help_text="The artifact."), **DOWNLOAD}
            ),
            **PROBLEMS,
        },
    )
    def post(self, request: Request, artifact_id: str) -> Response:
        """Get what is needed to download an artifact.

        Returns presigned URLs of the encrypted parts and the key that decrypts them. Check `manifest` before you use
        `files`; `trainer.contract.encryption` does both. The request is recorded in the audit trail. A token needs the
        scope `artifacts`."""
        who = principal(request)
        row = selectors.artifact_of(who, artifact_id)
        return Response({"artifact": ArtifactSerializer(row).data, **_download(who, row)})


class CheckpointDownloadView(APIView):
    @extend_schema(
        operation_id="checkpoints_download",
        request=None,
        responses={
            200: inline_serializer(
                "CheckpointDownload", {"checkpoint": CheckpointSerializer(help_text="The checkpoint."), **DOWNLOAD}
            ),
            **PROBLEMS,
        },
    )
    def post(self, request: Request, checkpoint_id: str) -> Response:
        """Get what is needed to download a checkpoint.

        Returns presigned URLs of the encrypted parts and the key that decrypts them. Check `manifest` before you use
        `files`; `trainer.contract.encryption` does both. The request is recorded in the audit trail. A token needs the
        scope `artifacts`."""
        who = principal(request)
        row = selectors.checkpoint_of(who, checkpoint_id)
        return Response({"checkpoint": CheckpointSerializer(row).data, **_download(who, row)})


class ArchiveView(APIView):
    @extend_schema(
        operation_id="artifacts_archive",
        responses={(200, "application/x-tar"): OpenApiTypes.BINARY, **PROBLEMS},
    )
    def get(self, request: Request, artifact_id: str) -> StreamingHttpResponse:
        """Download an artifact as a tar archive.

        Streams all files, decrypted and verified part by part. If a part cannot be verified the connection is
        closed, so an incomplete archive is never mistaken for a complete one. The request is recorded in the audit
        trail. A token needs the scope `artifacts`."""
        who = principal(request)
        row = selectors.artifact_of(who, artifact_id)
        _hand_out(who, row)
        files = manifests.of_stored(row).files
        response = StreamingHttpResponse(Download(who.user, _tar(row, files)), content_type="application/x-tar")
        response["Content-Disposition"] = f'attachment; filename="{row.job.name}-{row.kind}.tar"'
        response["Content-Length"] = str(sum(_tar_size(file.size) for file in files) + 2 * TAR_BLOCK)
        return response


def _hand_out(who: Principal, row: Artifact | Checkpoint) -> None:
    check(who, Permission.DOWNLOAD, row.job.team_id)
    services.hand_out(row, who.user)


def _download(who: Principal, row: Artifact | Checkpoint) -> dict[str, Any]:
    _hand_out(who, row)
    expires_at = storage.presigned_until()  # of the first URL
    files = []
    manifest = manifests.of_stored(row)
    for file in manifest.files:
        parts = []
        for part in file.parts:
            url, _ = storage.presign("get", part.key)
            parts.append({**part.model_dump(), "url": url})
        files.append({"path": file.path, "size": file.size, "parts": parts})
    data_key = keys.data_key(row.job_id, row.job.team)
    return {
        "files": files,
        "manifest": manifest.model_dump(mode="json"),
        "data_key": data_key,
        "expires_at": expires_at,
    }


def _tar(row: Artifact, files: list[StoredFile]) -> Iterator[bytes]:
    """A tar stream. A part that cannot be opened breaks the connection, so that a bad archive is never whole."""
    for file in files:
        header = tarfile.TarInfo(f"{row.job.name}/{file.path}")
        header.size, header.mtime = file.size, int(row.created_at.timestamp())
        yield header.tobuf(tarfile.USTAR_FORMAT)
        yield from services.opened_parts(row, file.path)
        yield bytes(-file.size % TAR_BLOCK)
    yield bytes(2 * TAR_BLOCK)


def _tar_size(size: int) -> int:
    return TAR_BLOCK + size + -size % TAR_BLOCK
