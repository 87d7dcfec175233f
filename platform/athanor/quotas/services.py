"""The tree, and what changes it."""

from athanor.accounts.models import Team
from athanor.quotas.models import AdmissionSettings, QuotaNode

ROOT = "organisation"


def root() -> QuotaNode:
    return QuotaNode.objects.get_or_create(parent=None, name=ROOT)[0]


def locked_root() -> QuotaNode:
    """The one lock of admission: whoever admits or changes quotas holds it until the end of its transaction."""
    root()
    return QuotaNode.objects.select_for_update(no_key=True).get(parent=None)


def leaf_of(team: Team) -> QuotaNode:
    found = QuotaNode.objects.filter(team=team).first()
    return found or QuotaNode.objects.get_or_create(team=team, defaults={"parent": root(), "name": team.name})[0]


def settings() -> AdmissionSettings:
    return AdmissionSettings.objects.get_or_create(pk=1)[0]
