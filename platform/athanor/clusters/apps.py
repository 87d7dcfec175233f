"""The Django app of clusters."""

from django.apps import AppConfig


class ClustersConfig(AppConfig):
    """Configuration of the clusters app."""

    name = "athanor.clusters"
    verbose_name = "Clusters"
