"""Serializers of the technical documentation of a model version."""

from rest_framework import serializers

from athanor.compliance.model_documentation import REGULATION, Documentation, Fact, Item


class DocumentationFactSerializer(serializers.Serializer[Fact]):
    """One thing that the platform has on record."""

    name = serializers.CharField(help_text="What it is, in words.")
    value = serializers.CharField(allow_null=True, help_text="Its value, with the unit. Null if it is not known.")
    of = serializers.CharField(help_text="Id of what it describes: a job, an artifact, a data set, or `NAME@NUMBER`.")
    record = serializers.CharField(help_text="Path of the operation that shows the record, below `/api/v1`.")


class DocumentationItemSerializer(serializers.Serializer[Item]):
    """An item of the form."""

    number = serializers.CharField(help_text="Section and item of the Annex, such as `1.2(c)`.")
    title = serializers.CharField(help_text="What the item is about.")
    facts = DocumentationFactSerializer(many=True, help_text="What is on record, the newest job first.")
    heading = serializers.CharField(
        allow_null=True,
        help_text="Heading of the section in the model's card that is the statement of this item. Null if the facts "
        "are all of it.",
    )
    statement = serializers.CharField(
        allow_null=True, help_text="That section, in Markdown. Null if the card has none, or an empty one."
    )
    missing = serializers.BooleanField(source="is_missing", help_text="Whether the statement is left to be written.")


class DocumentationSerializer(serializers.Serializer[Documentation]):
    """The technical documentation of a version."""

    model = serializers.CharField(source="version.model.name", help_text="Name of the model.")
    version = serializers.IntegerField(source="version.number", help_text="Number of the version.")
    digest = serializers.CharField(source="version.digest", help_text="SHA-256 of its manifest, hexadecimal.")
    regulation = serializers.SerializerMethodField(help_text="The form: a regulation and its annex.")
    items = DocumentationItemSerializer(many=True, help_text="The items, in the order of the form.")
    limits = serializers.ListField(
        child=serializers.CharField(),
        help_text="What of its history is not on record, as sentences. Empty if the weights were trained here, from "
        "the first step on.",
    )

    def get_regulation(self, found: Documentation) -> str:
        """Return the form."""
        return REGULATION
