from django.apps import AppConfig


class ArtifactsConfig(AppConfig):
    name = "athanor.artifacts"
