from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.db import models

from athanor.core import ids


class User(AbstractUser):
    id = models.CharField(primary_key=True, max_length=40, default=ids.user_id, editable=False)


class Team(models.Model):
    """Owner of jobs, data and keys. The limits are optional; None means without limit."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.team_id, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    max_running_jobs = models.PositiveIntegerField(null=True, blank=True)
    max_slots = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"


class Membership(models.Model):
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["user", "team"], name="one_membership_per_user_and_team")
        ]

    def __str__(self) -> str:
        return f"{self.user_id} in {self.team_id} as {self.role}"


class ApiToken(models.Model):
    """A bearer token of one user for one team. Only its SHA-256 is kept; the token is random, so no salt is needed."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.token_id, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}...)"
