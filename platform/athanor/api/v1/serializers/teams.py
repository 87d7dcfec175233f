"""Serializers of teams, members, invitations and service accounts."""

from typing import Any

from rest_framework import serializers

from athanor.accounts.models import Invitation, Membership, Team, User
from athanor.accounts.roles import Role
from athanor.api.bodies import RequestSerializer
from athanor.quotas import services as quotas

LIMITS = ("max_running_jobs", "max_slots")
ROLES = [role.value for role in Role]
MAX_INVITATION_HOURS = 24 * 30


class LimitsSerializer(RequestSerializer):
    """Limits of a team."""

    max_running_jobs = serializers.IntegerField(
        allow_null=True,
        required=False,
        min_value=0,
        max_value=2**31 - 1,
        help_text="Maximum number of jobs that may run at the same time. Null: no limit.",
    )
    max_slots = serializers.IntegerField(
        allow_null=True,
        required=False,
        min_value=0,
        max_value=2**31 - 1,
        help_text="Maximum number of slots that its jobs may hold at the same time. Null: no limit.",
    )


class DataPolicySerializer(RequestSerializer):
    """What a team requires of data that jobs train on."""

    requires_data_report = serializers.BooleanField(
        help_text="Whether to refuse training on data sets without a data report, or with critical findings in the "
        "newest one."
    )


class NewTeamSerializer(LimitsSerializer):
    """A team to create."""

    name = serializers.SlugField(max_length=63, help_text="Name, unique on the platform: letters, digits, `-` and `_`.")


class TeamSerializer(serializers.Serializer[Team]):
    """A team with its limits."""

    max_running_jobs = serializers.IntegerField(
        allow_null=True, help_text="Maximum number of jobs that may run at the same time. Null: no limit."
    )
    max_slots = serializers.IntegerField(
        allow_null=True, help_text="Maximum number of slots that its jobs may hold at the same time. Null: no limit."
    )
    id = serializers.CharField()
    name = serializers.CharField(help_text="Name, unique on the platform.")
    requires_data_report = serializers.BooleanField(
        help_text="Whether training is refused on data sets without a data report, or with critical findings in the "
        "newest one."
    )
    created_at = serializers.DateTimeField()

    def to_representation(self, instance: Team) -> dict[str, Any]:
        """Represent a team with the limits of its leaf of the quota tree."""
        leaf = getattr(instance, "quota_node", None) or quotas.leaf_of(instance)
        shown = {name: getattr(instance, name) for name in ("id", "name", "requires_data_report", "created_at")}
        facts: Any = {**shown, **{name: getattr(leaf, name) for name in LIMITS}}  # read like a Team
        return dict(super().to_representation(facts))


class MemberSerializer(serializers.Serializer[Membership]):
    """A person or service account in a team."""

    user_id = serializers.CharField(help_text="Id of the user.")
    username = serializers.CharField(
        source="user.username", help_text="Username. That of a service account is `NAME@TEAM`."
    )
    email = serializers.CharField(
        source="user.email", allow_blank=True, help_text="Email address. Empty if none is known."
    )
    role = serializers.ChoiceField(
        choices=ROLES,
        help_text=(
            "Role in the team: `viewer` reads and downloads, `member` also submits, `admin` also manages "
            "members, secrets and webhooks."
        ),
    )
    is_service_account = serializers.SerializerMethodField(
        help_text="Whether it is a service account instead of a person."
    )

    def get_is_service_account(self, row: Membership) -> bool:
        """Return whether the member is a service account."""
        return row.user.service_team_id is not None


class RoleSerializer(RequestSerializer):
    """A role in a team."""

    role = serializers.ChoiceField(
        choices=ROLES,
        help_text=(
            "Role in the team: `viewer` reads and downloads, `member` also submits, `admin` also manages "
            "members, secrets and webhooks."
        ),
    )


class NewMemberSerializer(RoleSerializer):
    """A person to offer membership to."""

    username = serializers.CharField(max_length=150, help_text="Username of the person.")


class NewInvitationSerializer(RoleSerializer):
    """An invitation link to create."""

    note = serializers.CharField(
        max_length=200,
        required=False,
        allow_blank=True,
        help_text="Whom the invitation is for. Only the team's administrators see it.",
    )
    expires_in_hours = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_INVITATION_HOURS,
        help_text="Hours for which the link works. 72 without it.",
    )


class InvitationSerializer(serializers.Serializer[Invitation]):
    """An invitation to a team, by link or offered to a user."""

    id = serializers.CharField()
    role = serializers.ChoiceField(choices=ROLES, help_text="Role that the invited person gets.")
    note = serializers.CharField(allow_blank=True, help_text="Whom the invitation is for. May be empty.")
    created_by = serializers.CharField(
        source="created_by.username", help_text="Username of the administrator who created it."
    )
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(help_text="Time until which it can be accepted, ISO 8601 in UTC.")
    accepted_by = serializers.CharField(
        source="accepted_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the person who accepted it. Null if nobody has.",
    )
    accepted_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was accepted, ISO 8601 in UTC. Null if it was not."
    )
    revoked_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was revoked, ISO 8601 in UTC. Null if it was not."
    )
    declined_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was declined, ISO 8601 in UTC. Null if it was not."
    )
    username = serializers.CharField(
        allow_blank=True, help_text="Username of the person that it is offered to. Empty for a link."
    )


class OfferSerializer(serializers.Serializer[Invitation]):
    """An invitation as the invited user sees it."""

    id = serializers.CharField()
    team = serializers.CharField(source="team.name", help_text="Name of the team.")
    role = serializers.ChoiceField(choices=ROLES, help_text="Role that you get.")
    created_by = serializers.CharField(
        source="created_by.username", help_text="Username of the administrator who created it."
    )
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(help_text="Time until which you can accept it, ISO 8601 in UTC.")


class MadeInvitationSerializer(InvitationSerializer):
    """A new invitation with its link."""

    token = serializers.CharField(help_text="Token of the link. It is shown only here.")
    url = serializers.CharField(help_text="The link for the invited person. It works once.")


class AcceptSerializer(RequestSerializer):
    """Acceptance of an invitation link."""

    token = serializers.CharField(max_length=200, help_text="Token of the invitation link: what follows the `#`.")
    username = serializers.CharField(
        required=False, max_length=150, help_text="Username of a new account. Leave it out when signed in."
    )
    password = serializers.CharField(
        required=False,
        trim_whitespace=False,
        max_length=200,
        help_text="Password of a new account. Leave it out when signed in.",
    )


class NewServiceAccountSerializer(RoleSerializer):
    """A service account to create."""

    name = serializers.SlugField(max_length=40, help_text="Name within the team. The username is `NAME@TEAM`.")


class ServiceAccountSerializer(serializers.Serializer[User]):
    """An account that programs of a team use."""

    id = serializers.CharField()
    username = serializers.CharField(help_text="Username, `NAME@TEAM`.")
    created_at = serializers.DateTimeField(source="date_joined")


class NewUserSerializer(AcceptSerializer):
    """Acceptance of an invitation link by a person without an account."""

    username = serializers.CharField(max_length=150, help_text="Username of the new account.")
    password = serializers.CharField(trim_whitespace=False, max_length=200, help_text="Password of the new account.")
