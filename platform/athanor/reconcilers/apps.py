from django.apps import AppConfig


class ReconcilersConfig(AppConfig):
    name = "athanor.reconcilers"
    label = "operations"  # of its tables and migrations
