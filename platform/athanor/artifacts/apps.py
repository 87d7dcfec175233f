"""The Django app of artifacts."""

from django.apps import AppConfig


class ArtifactsConfig(AppConfig):
    """Registers the system check of the master key."""

    name = "athanor.artifacts"

    def ready(self) -> None:
        """Register the system checks."""
        from athanor.artifacts import checks  # noqa: F401, PLC0415 - models are there only now
