"""Serializers of deletions, their previews and certificates."""

from typing import Any

from rest_framework import serializers

from athanor.api.v1.serializers.common import NamedSerializer
from athanor.artifacts.deletions import Preview
from athanor.artifacts.models import Deletion


class DeletionSerializer(serializers.Serializer[Deletion]):
    """A deletion, which can be undone until its objects are removed."""

    id = serializers.CharField()
    team = NamedSerializer()
    kind = serializers.ChoiceField(choices=Deletion.Kind.choices, help_text="Kind of what was deleted.")
    target = serializers.CharField(source="target_id", help_text="Id of what was deleted.")
    name = serializers.CharField(
        source="label", help_text="Name of what was deleted, of a version of a data set `NAME@NUMBER`."
    )
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
        """Return the username, empty if the account is gone."""
        return row.deleted_by.username if row.deleted_by else ""


class DependentSerializer(serializers.Serializer[Any]):
    """A job that depends on what would be deleted."""

    id = serializers.CharField(help_text="Id of the job.")
    name = serializers.CharField(help_text="Name of the job.")
    status = serializers.CharField(help_text="Status of the job.")


class DeletionPreviewSerializer(serializers.Serializer[Preview]):
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
    registered = serializers.ListField(
        child=serializers.CharField(),
        help_text=(
            "Versions of models, as `NAME@NUMBER`. Their files stay; an artifact that is one of them cannot be "
            "deleted. Of a data set: those that jobs on it have exported."
        ),
    )
    aliases = serializers.ListField(
        child=serializers.CharField(),
        help_text="Aliases that name a version of a data set. While there are any, it cannot be deleted.",
    )
    undo_days = serializers.IntegerField(help_text="Days during which the deletion can be undone.")
    contents = serializers.DictField(
        child=serializers.IntegerField(),
        help_text=(
            "What else a project or a team contains: a number by kind, such as jobs, members, secrets or budgets."
        ),
    )


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
