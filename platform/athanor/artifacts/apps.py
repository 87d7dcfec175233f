"""The Django app of artifacts."""

from django.apps import AppConfig


class ArtifactsConfig(AppConfig):
    """Registers the system check of the master key, and the receiver that ends the use of checkpoints."""

    name = "athanor.artifacts"

    def ready(self) -> None:
        """Register the system checks and the receiver."""
        from athanor.artifacts import checkpoint_retention, checks  # noqa: F401, PLC0415 - models are there only now
