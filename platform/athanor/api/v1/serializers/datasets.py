"""Serializers of data sets."""

from typing import Any

from rest_framework import serializers

from athanor.api.v1.serializers.common import NamedSerializer
from athanor.artifacts.models import Dataset


class DatasetSerializer(serializers.Serializer[Dataset]):
    """Text of a team to train on."""

    id = serializers.CharField()
    team = NamedSerializer()
    name = serializers.CharField(help_text="Name within the team. Jobs name the data set by it.")
    spec_source = serializers.CharField(help_text="What a spec writes in `source` to train on it.")
    origin = serializers.CharField(
        help_text=(
            "`sealed` for an upload, which is stored encrypted; `plain` for an S3 prefix that is read in "
            "place; `builtin` for text of the platform."
        )
    )
    format = serializers.CharField(
        help_text="`auto` if it is found out when the data set is read, or the format of the files."
    )
    size_bytes = serializers.IntegerField(help_text="Size in bytes; 0 if the data set is not an upload.")
    documents = serializers.IntegerField(allow_null=True, help_text="Number of documents. Null if it is not known.")
    created_at = serializers.DateTimeField()


class ForgottenSerializer(serializers.Serializer[Any]):
    """Result of discarding tokenised forms."""

    forgotten = serializers.IntegerField(help_text="Number of tokenised forms that were discarded.")
