"""Keys, and what they encrypt in the database: of teams, of jobs, data sets and imported models, secrets, signing keys.

Import them from `athanor.artifacts.models`, which Django reads.
"""

from typing import ClassVar

from django.db import models

from athanor.accounts.models import Team, User
from athanor.core import ids


class TeamKey(models.Model):
    """The key that wraps a team's data keys, wrapped by the master key."""

    team = models.OneToOneField(Team, primary_key=True, on_delete=models.PROTECT, related_name="+")
    wrapped = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"key of {self.team_id}"


class DataKey(models.Model):
    """The key of one owner (a job, a data set or an imported model, by id), wrapped by its team's key."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.key_id, editable=False)
    owner = models.CharField(max_length=40, unique=True)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    wrapped = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"key of {self.owner}"


class TeamSecret(models.Model):
    """A secret that only attempts of jobs that name it receive, encrypted with the team's key."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.secret_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=63)
    wrapped = models.BinaryField()
    # Origins (scheme://host[:port]) of the servers that the platform's own clients may send the value to.
    destinations = models.JSONField(default=list)
    updated_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["team", "name"], name="secret_name_is_unique_in_a_team")
        ]

    def __str__(self) -> str:
        return self.name


class SigningKey(models.Model):
    """A key of a team that signs exported models. `wrapped`: its private half, empty once it does not sign any more."""

    class State(models.TextChoices):
        ACTIVE = "active"
        RETIRED = "retired"
        REVOKED = "revoked"

    id = models.CharField(primary_key=True, max_length=40, default=ids.signing_key_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    public_key = models.TextField()  # PEM
    fingerprint = models.CharField(max_length=64, unique=True)  # SHA-256 of `public_key`
    wrapped = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)
    retired_at = models.DateTimeField(null=True)  # set by a rotation
    revoked_at = models.DateTimeField(null=True)
    revocation_reason = models.TextField(blank=True, default="")
    revoked_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["team"],
                condition=models.Q(retired_at=None, revoked_at=None),
                name="one_active_signing_key_per_team",
            )
        ]

    def __str__(self) -> str:
        return f"signing key {self.fingerprint[:12]} of {self.team_id}"

    @property
    def state(self) -> State:
        """Return whether it signs, and whether its signatures are valid."""
        if self.revoked_at is not None:
            return self.State.REVOKED
        return self.State.ACTIVE if self.retired_at is None else self.State.RETIRED
