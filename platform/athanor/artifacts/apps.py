"""The Django app of artifacts."""

from django.apps import AppConfig


class ArtifactsConfig(AppConfig):
    """The app's name."""

    name = "athanor.artifacts"
