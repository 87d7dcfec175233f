"""The Django app of the reconcilers."""

from django.apps import AppConfig


class ReconcilersConfig(AppConfig):
    """Runs of reconcilers. The label is that of its tables and migrations."""

    name = "athanor.reconcilers"
    label = "operations"
