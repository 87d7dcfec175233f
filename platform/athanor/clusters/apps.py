from django.apps import AppConfig


class ClustersConfig(AppConfig):
    name = "athanor.clusters"
    verbose_name = "Clusters"
