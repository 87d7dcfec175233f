"""The tree, and what changes it."""

from collections.abc import Callable, Mapping

from django.db import transaction

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.core import wakeups
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
    if found:
        return found
    top = root()
    taken = QuotaNode.objects.filter(parent=top, name=team.name).exists()  # by a group
    defaults = {"parent": top, "name": f"{team.name}-{team.id[-6:].lower()}" if taken else team.name}
    return QuotaNode.objects.get_or_create(team=team, defaults=defaults)[0]


def settings() -> AdmissionSettings:
    return AdmissionSettings.objects.get_or_create(pk=1)[0]


def change_limits(
    team: Team, limits: Mapping[str, int | None], actor: User, guard: Callable[[QuotaNode], None] | None = None
) -> QuotaNode:
    """Of a team's leaf; those that are not named stay. `guard` may refuse under the lock."""
    with transaction.atomic():
        top = locked_root()
        rows = QuotaNode.objects.select_for_update(no_key=True, of=("self",)).select_related("team")
        leaf = rows.get(pk=leaf_of(team).pk)
        if guard:
            guard(leaf)
        before = {name: getattr(leaf, name) for name in limits}
        for name, value in limits.items():
            setattr(leaf, name, value)
        leaf.version += 1
        leaf.save(update_fields=[*limits, "version"])
        QuotaNode.objects.filter(pk=top.pk).update(version=top.version + 1)
        audit.record(
            "quota.change",
            actor=actor,
            target=("quota_node", leaf.id),
            team_id=team.id,
            before=before,
            after=dict(limits),
        )
        wakeups.hint_after_commit(wakeups.ADMIT)
    return leaf
