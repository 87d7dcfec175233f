"""The Django app of compliance."""

from django.apps import AppConfig


class ComplianceConfig(AppConfig):
    """Erasures of teams."""

    name = "athanor.compliance"
