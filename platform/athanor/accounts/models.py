"""Users, teams, memberships, tokens, invitations, and the records of sign-ins, errors and the audit trail."""

from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.db import models

from athanor.accounts import roles
from athanor.core import ids
from athanor.core.leases import LeasedModel


class PlatformRole(models.TextChoices):
    """The values of roles.PlatformRole as Django choices."""

    NONE = roles.PlatformRole.NONE.value
    AUDITOR = roles.PlatformRole.AUDITOR.value
    PLATFORM_ADMIN = roles.PlatformRole.PLATFORM_ADMIN.value


class User(AbstractUser):
    """A person; or, with `service_team`, a service account of that team, which has tokens and no password."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.user_id, editable=False)
    platform_role = models.CharField(max_length=20, choices=PlatformRole.choices, default=PlatformRole.NONE)
    service_team = models.ForeignKey(
        "Team", null=True, blank=True, on_delete=models.PROTECT, related_name="service_accounts"
    )
    # When the identity provider last confirmed the user; null for an account that no provider has. Tokens and sessions
    # stop working some time after it, or when the provider refuses to confirm it again (accounts/sign_on_expiry.py).
    signed_on_at = models.DateTimeField(null=True, blank=True, editable=False)
    sign_on_refused_at = models.DateTimeField(null=True, blank=True, editable=False)

    @property
    def password_version(self) -> str:
        """Return a value that changes with the password and reveals nothing about it."""
        return self.get_session_auth_hash()[:16]


class Team(models.Model):
    """Owner of jobs, data and keys. Its limits are in its leaf of the quota tree (quotas/models.py)."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.team_id, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    # Whether training is refused on data sets without a data report, or with critical findings in the newest one.
    requires_data_report = models.BooleanField(default=False, db_default=False)
    # Nobody belongs to a deleted team. Until its erasure begins it can be restored (compliance/erasure.py).
    deleted_at = models.DateTimeField(null=True, editable=False)

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    """The values of roles.Role as Django choices."""

    VIEWER = roles.Role.VIEWER.value
    MEMBER = roles.Role.MEMBER.value
    ADMIN = roles.Role.ADMIN.value


class Membership(models.Model):
    """A user's role in a team. `source` is empty if an administrator gave it."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)
    # Empty: an administrator gave it. Else what gave it, and may take it (accounts/sign_on.py).
    source = models.CharField(max_length=20, blank=True, default="")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["user", "team"], name="one_membership_per_user_and_team")
        ]

    def __str__(self) -> str:
        return f"{self.user_id} in {self.team_id} as {self.role}"


class ApiToken(models.Model):
    """A bearer token of one user for one team.

    Only its SHA-256 is stored; the token is random, so no salt is needed. `parent` is the token that created it, if
    any: it never outlives that one and is revoked with it. Only the successor of a token that rotated itself outlives
    its parent (accounts/services.py).
    """

    id = models.CharField(primary_key=True, max_length=40, default=ids.token_id, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    scopes = models.JSONField(default=roles.default_scopes)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.CASCADE, related_name="children")

    class Meta:
        verbose_name = "API token"

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}...)"


class Invitation(models.Model):
    """An offer of membership, valid once and for a limited time: a link for its holder, or an offer to one user.

    Of a link only the SHA-256 is stored. An offer has no link but the `username` that was entered, and `invited`, the
    user who had that name then, if any. The team sees only the name, so that it cannot find out which users exist.
    """

    id = models.CharField(primary_key=True, max_length=40, default=ids.invitation_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="invitations")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)
    note = models.CharField(max_length=200, blank=True, default="")
    digest = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    accepted_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    accepted_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    username = models.CharField(max_length=150, blank=True, default="")
    invited = models.ForeignKey(User, null=True, blank=True, on_delete=models.CASCADE, related_name="invitations")
    declined_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.id} to {self.team_id} as {self.role}"


class SignInTries(models.Model):
    """Failed sign-ins, counted by one kind of key (accounts/throttling.py). Keys and names are digests."""

    key = models.CharField(primary_key=True, max_length=64)
    name_digest = models.CharField(max_length=64, blank=True, default="", db_index=True)  # empty: of no one name
    count = models.PositiveIntegerField()
    free_at = models.DateTimeField(help_text="when the next try is taken")
    window_ends = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.count} until {self.window_ends}"


class SignOnGrant(LeasedModel):
    """The refresh token with which the identity provider is asked about a user (accounts/sign_on_checks.py)."""

    user = models.OneToOneField(User, primary_key=True, on_delete=models.CASCADE, related_name="sign_on_grant")
    encrypted = models.BinaryField(help_text="by the master key")
    next_check_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"sign-on of {self.user_id}, next check at {self.next_check_at}"


class IdempotentAnswer(models.Model):
    """The response of a request that created something, by its `Idempotency-Key` (accounts/idempotency.py)."""

    credential = models.CharField(max_length=100)  # "token:ID", "user:ID" or "invitation:DIGEST"
    key = models.CharField(max_length=200)
    path = models.TextField()
    status = models.PositiveSmallIntegerField()
    encrypted = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["credential", "key"], name="one_answer_per_idempotency_key")
        ]

    def __str__(self) -> str:
        return f"{self.status} of {self.path}"


class WorkFailure(models.Model):
    """Consecutive unexpected errors of background work on one row (accounts/failures.py).

    A successful run deletes it. `task` is the reconciler, `work` a phrase that names the row, `error` the last error's
    type and text.
    """

    task = models.CharField(max_length=60)
    work = models.CharField(max_length=150)
    tries = models.PositiveIntegerField(default=0)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField(db_index=True)
    next_try_at = models.DateTimeField()
    given_up_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True, default="")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["task", "work"], name="one_failure_per_work")
        ]

    def __str__(self) -> str:
        return f"{self.work}: {self.tries} tries"


class AuditEvent(models.Model):
    """One record of the audit trail, written by accounts/audit.py. Immutable: a trigger enforces it.

    Ids are plain text, without foreign keys: the record outlives its target.
    """

    seq = models.BigIntegerField(primary_key=True)
    time = models.DateTimeField(db_index=True)
    action = models.CharField(max_length=60)
    actor = models.CharField(max_length=150)
    actor_id = models.CharField(max_length=40, blank=True, default="")
    token_id = models.CharField(max_length=40, blank=True, default="")
    team_id = models.CharField(max_length=40, blank=True, default="")
    target_type = models.CharField(max_length=40)
    target_id = models.CharField(max_length=150)
    address = models.CharField(max_length=64, blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    previous = models.CharField(max_length=64, blank=True)
    digest = models.CharField(max_length=64)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["team_id", "-seq"], name="audit_of_a_team"),
            models.Index(fields=["target_id", "-seq"], name="audit_of_a_target"),
            models.Index(fields=["actor", "-seq"], name="audit_of_an_actor"),
        ]

    def __str__(self) -> str:
        return f"#{self.seq} {self.action} by {self.actor}"


class AuditHead(models.Model):
    """The chain's end, a code over it, and the chain's key (wrapped by the master key). One row."""

    id = models.PositiveSmallIntegerField(primary_key=True)
    seq = models.BigIntegerField()
    digest = models.CharField(max_length=64, blank=True)
    wrapped_key = models.BinaryField()
    mac = models.CharField(max_length=64, blank=True, default="")

    def __str__(self) -> str:
        return f"chain to #{self.seq}"
