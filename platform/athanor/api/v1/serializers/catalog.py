"""Serializers of presets."""

from typing import Any

from rest_framework import serializers


class PresetSerializer(serializers.Serializer[Any]):
    """A complete job spec to start from."""

    name = serializers.CharField(help_text="Name of the preset.")
    title = serializers.CharField(help_text="Title for people.")
    description = serializers.CharField(help_text="What the preset trains, in a sentence or two.")
    num_parameters = serializers.IntegerField(help_text="Parameters of its model.")
    fits = serializers.DictField(
        child=serializers.BooleanField(), help_text="Whether the job could run, by name of each enabled cluster."
    )
    spec = serializers.JSONField(help_text="The spec as JSON.")
    spec_yaml = serializers.CharField(help_text="The same spec as commented YAML.")
