"""Create the quota leaf of each new team."""

from typing import Any

from django.db.models.signals import post_save
from django.dispatch import receiver

from athanor.accounts.models import Team
from athanor.quotas import services


@receiver(post_save, sender=Team, dispatch_uid="athanor.quotas")
def create_leaf(instance: Team, created: bool, **_: Any) -> None:
    """Create the quota leaf of a new team."""
    if created:
        services.leaf_of(instance)
