"""The Django app of jobs."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """Jobs, attempts, events, projects."""

    name = "athanor.jobs"
    verbose_name = "Jobs"
