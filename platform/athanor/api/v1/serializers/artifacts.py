"""Serializers of checkpoints and artifacts, and of their downloads."""

from typing import Any, TypeVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.api.v1.serializers.common import NamedSerializer, build_serializer
from athanor.artifacts import checkpoint_states, keys, manifests
from athanor.artifacts.models import Artifact, Checkpoint
from athanor.core.errors import Conflict
from trainer.contract.manifest import CheckpointManifest, Manifest

Row = TypeVar("Row", Checkpoint, Artifact)


class StoredFileSerializer(serializers.Serializer[Any]):
    """A file of a checkpoint or artifact."""

    path = serializers.CharField(help_text="Path of the file, relative, with forward slashes.")
    size = serializers.IntegerField(help_text="Size of the decrypted file in bytes.")


class StoredSerializer(serializers.Serializer[Row]):
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
        """Return the files of the manifest, none if it is not authentic."""
        manifest = self._manifest(row)
        return [{"path": file.path, "size": file.size} for file in manifest.files] if manifest else []

    def get_authentic(self, row: Checkpoint | Artifact) -> bool:
        """Return whether the manifest is authentic."""
        return self._manifest(row) is not None

    def _manifest(self, row: Checkpoint | Artifact) -> Manifest | None:
        """Return the row's manifest, None if it is not authentic. Each is verified once per response."""
        context: Any = self.context  # the stubs know only that it can be read
        known: dict[str, Manifest | None] = context.setdefault("manifests", {})
        encryptors = context.setdefault("encryptors", {})
        if row.pk not in known:
            if row.key_owner not in encryptors:
                encryptors[row.key_owner] = keys.encryptor_of(row)
            try:
                known[row.pk] = manifests.of_stored(row, encryptors[row.key_owner])
            except Conflict:
                known[row.pk] = None
        return known[row.pk]


class ArtifactSerializer(StoredSerializer[Artifact]):
    """A model, log or profile that a job stored, or an imported model."""

    job = serializers.CharField(source="job_id", allow_null=True, help_text="Id of the job. Null if it was imported.")
    attempt = serializers.CharField(
        source="attempt_id", allow_null=True, help_text="Id of the attempt that stored it. Null if it was imported."
    )
    team = NamedSerializer(
        source="owner", help_text="The team that it belongs to: another than yours if it is of a shared model."
    )
    kind = serializers.ChoiceField(choices=Artifact.Kind.choices, help_text="`model`, `log` or `profile`.")
    name = serializers.CharField(help_text="Name of the artifact.")


class CheckpointSerializer(StoredSerializer[Checkpoint]):
    """A state that a job stored to resume from."""

    world_size = serializers.SerializerMethodField(help_text="Number of ranks that wrote it. Null unless `authentic`.")
    generation = serializers.IntegerField(
        help_text=(
            "Number of the worker group within the attempt that wrote it, from 0: it grows with each restart in place."
        )
    )

    state = serializers.ChoiceField(
        choices=Checkpoint.State.choices,
        help_text=(
            "`intact`; `damaged`: it could not be read, or an administrator marked it (`damage`); or `diverged`: its "
            "run went back to an earlier one. Nothing resumes from the last two. The next checkpoint retires diverged "
            "ones, and those that have been damaged for ATHANOR_UNDO_DAYS (7)."
        ),
    )
    damage = serializers.CharField(allow_blank=True, help_text="Why it is damaged. Empty if it is not.")
    verified_at = serializers.DateTimeField(
        allow_null=True,
        help_text=(
            "Time at which the platform had last read all of its stored parts and found them as the manifest says, "
            "ISO 8601 in UTC. Null if it has not yet."
        ),
    )

    def get_world_size(self, row: Checkpoint) -> int | None:
        """Return the number of ranks that wrote the checkpoint, None if the manifest is not authentic."""
        manifest = self._manifest(row)
        return manifest.world_size if isinstance(manifest, CheckpointManifest) else None


class ActedCheckpointSerializer(CheckpointSerializer):
    """A checkpoint after an administrator changed its state."""

    retired_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was retired, ISO 8601 in UTC. Null if it is not."
    )
    notice = serializers.SerializerMethodField(help_text="What its job does next, and what you can do, as text.")

    def get_notice(self, row: Checkpoint) -> str:
        """Return what the job resumes from now."""
        return checkpoint_states.notice_of(row)


class CheckpointReasonSerializer(RequestSerializer):
    """Why the state of a checkpoint is changed."""

    reason = serializers.CharField(max_length=500, help_text="Reason, for others to read.")


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

ARTIFACT_DOWNLOAD = build_serializer(
    "ArtifactDownload",
    "What is needed to download an artifact.",
    {"artifact": ArtifactSerializer(help_text="The artifact."), **DOWNLOAD},
)

CHECKPOINT_DOWNLOAD = build_serializer(
    "CheckpointDownload",
    "What is needed to download a checkpoint.",
    {"checkpoint": CheckpointSerializer(help_text="The checkpoint."), **DOWNLOAD},
)
