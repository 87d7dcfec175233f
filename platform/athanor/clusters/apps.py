"""The Django app of clusters."""

from django.apps import AppConfig


class ClustersConfig(AppConfig):
    """The app's name."""

    name = "athanor.clusters"
    verbose_name = "Clusters"
