from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "athanor.jobs"
    verbose_name = "Jobs"
