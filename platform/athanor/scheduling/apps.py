from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "athanor.scheduling"
    verbose_name = "Scheduling"
