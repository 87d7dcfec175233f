"""The Django app of scheduling."""

from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    """Admission cycles, start estimates and simulations."""

    name = "athanor.scheduling"
    verbose_name = "Scheduling"
