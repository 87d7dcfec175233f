"""/teams: teams, their members, invitations and service accounts."""

from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts import members, services
from athanor.accounts.models import Invitation, Membership, Team, User
from athanor.accounts.roles import Permission, Role
from athanor.accounts.selectors import (
    Principal,
    invitation_of,
    member_of,
    members_of,
    service_account_of,
    service_accounts_of,
    teams_of,
)
from athanor.api.access import check, check_platform, principal, team_for
from athanor.api.etags import IF_MATCH, guard, tag_of, tagged
from athanor.api.pagination import listed
from athanor.api.v1.shapes import PROBLEMS, page_of
from athanor.api.v1.tokens import NewTokenSerializer, ScopedSerializer, issued, narrowed
from athanor.core.errors import Unauthenticated
from athanor.quotas import services as quotas

LIMITS = ("max_running_jobs", "max_slots")
ROLES = [role.value for role in Role]
LONGEST_INVITATION_HOURS = 24 * 30


class LimitsSerializer(serializers.Serializer[Any]):
    max_running_jobs = serializers.IntegerField(allow_null=True, required=False, min_value=0, max_value=2**31 - 1)
    max_slots = serializers.IntegerField(allow_null=True, required=False, min_value=0, max_value=2**31 - 1)


class TeamSerializer(LimitsSerializer):
    id = serializers.CharField(read_only=True)
    name = serializers.SlugField(max_length=63)
    created_at = serializers.DateTimeField(read_only=True)

    def to_representation(self, instance: Team) -> dict[str, Any]:
        leaf = getattr(instance, "quota_node", None) or quotas.leaf_of(instance)
        shown = {name: getattr(instance, name) for name in ("id", "name", "created_at")}
        return dict(super().to_representation({**shown, **{name: getattr(leaf, name) for name in LIMITS}}))


class MemberSerializer(serializers.Serializer[Membership]):
    user_id = serializers.CharField()
    username = serializers.CharField(source="user.username")
    email = serializers.CharField(source="user.email", allow_blank=True)
    role = serializers.ChoiceField(choices=ROLES)


class RoleSerializer(serializers.Serializer[Any]):
    role = serializers.ChoiceField(choices=ROLES)


class NewMemberSerializer(RoleSerializer):
    username = serializers.CharField(max_length=150)


class NewInvitationSerializer(RoleSerializer):
    note = serializers.CharField(max_length=200, required=False, allow_blank=True, help_text="for whom")
    expires_in_hours = serializers.IntegerField(required=False, min_value=1, max_value=LONGEST_INVITATION_HOURS)


class InvitationSerializer(serializers.Serializer[Invitation]):
    id = serializers.CharField()
    role = serializers.ChoiceField(choices=ROLES)
    note = serializers.CharField(allow_blank=True)
    created_by = serializers.CharField(source="created_by.username")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    accepted_by = serializers.CharField(source="accepted_by.username", allow_null=True, default=None)
    accepted_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)


class MadeInvitationSerializer(InvitationSerializer):
    token = serializers.CharField(help_text="shown this once")
    url = serializers.CharField(help_text="for the invited; good once")


class AcceptSerializer(serializers.Serializer[Any]):
    token = serializers.CharField(max_length=200)
    username = serializers.CharField(required=False, max_length=150, help_text="of a new user; not when signed in")
    password = serializers.CharField(required=False, trim_whitespace=False, max_length=200)


class NewServiceAccountSerializer(RoleSerializer):
    name = serializers.SlugField(max_length=40)


class ServiceAccountSerializer(serializers.Serializer[User]):
    id = serializers.CharField()
    username = serializers.CharField()
    created_at = serializers.DateTimeField(source="date_joined")


class TeamsView(APIView):
    @extend_schema(operation_id="teams_list", responses={200: page_of("TeamPage", TeamSerializer), **PROBLEMS})
    def get(self, request: Request) -> Response:
        rows = teams_of(principal(request)).select_related("quota_node")
        return Response(listed(TeamSerializer(rows, many=True).data))

    @extend_schema(operation_id="teams_create", request=TeamSerializer, responses={201: TeamSerializer, **PROBLEMS})
    def post(self, request: Request) -> Response:
        who = principal(request)
        check_platform(who, Permission.MANAGE_TEAMS)
        asked = read(TeamSerializer, request)
        if asked.keys() - {"name"}:
            check_platform(who, Permission.MANAGE_QUOTAS)
        team = members.create_team(asked.pop("name"), who.user)
        if asked:
            team = quotas.change_limits(team, asked, who.user).team
        return Response(TeamSerializer(team).data, status=201)


class TeamView(APIView):
    @extend_schema(operation_id="teams_show", responses={200: TeamSerializer, **PROBLEMS})
    def get(self, request: Request, team_id: str) -> Response:
        return tagged(request, TeamSerializer(_seen(principal(request), team_id)).data)

    @extend_schema(
        operation_id="teams_change",
        parameters=[IF_MATCH],
        request=LimitsSerializer,
        responses={200: TeamSerializer, **PROBLEMS},
    )
    def patch(self, request: Request, team_id: str) -> Response:
        who = principal(request)
        team = _seen(who, team_id)
        check_platform(who, Permission.MANAGE_QUOTAS)
        unchanged = guard(request, lambda row, tag: tag == tag_of(TeamSerializer(row).data))
        leaf = quotas.change_limits(team, read(LimitsSerializer, request), who.user, lambda leaf: unchanged(leaf.team))
        return tagged(request, TeamSerializer(leaf.team).data)


class MembersView(APIView):
    @extend_schema(operation_id="members_list", responses={200: page_of("MemberPage", MemberSerializer), **PROBLEMS})
    def get(self, request: Request, team_id: str) -> Response:
        return Response(listed(MemberSerializer(members_of(_seen(principal(request), team_id)), many=True).data))

    @extend_schema(
        operation_id="members_add", request=NewMemberSerializer, responses={201: MemberSerializer, **PROBLEMS}
    )
    def post(self, request: Request, team_id: str) -> Response:
        who = principal(request)
        team = team_for(who, Permission.MANAGE, team_id)
        asked = read(NewMemberSerializer, request)
        row = members.add_member(team, asked["username"], Role(asked["role"]), who.user)
        return Response(MemberSerializer(row).data, status=201)


class MemberView(APIView):
    @extend_schema(operation_id="members_show", responses={200: MemberSerializer, **PROBLEMS})
    def get(self, request: Request, team_id: str, user_id: str) -> Response:
        return tagged(request, MemberSerializer(member_of(_seen(principal(request), team_id), user_id)).data)

    @extend_schema(
        operation_id="members_change",
        parameters=[IF_MATCH],
        request=RoleSerializer,
        responses={200: MemberSerializer, **PROBLEMS},
    )
    def patch(self, request: Request, team_id: str, user_id: str) -> Response:
        who = principal(request)
        team = team_for(who, Permission.MANAGE, team_id)
        role = Role(read(RoleSerializer, request)["role"])
        unchanged = guard(request, lambda row, tag: tag == tag_of(MemberSerializer(row).data))
        return tagged(request, MemberSerializer(members.set_role(team, user_id, role, who.user, unchanged)).data)

    @extend_schema(operation_id="members_remove", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, team_id: str, user_id: str) -> Response:
        who = principal(request)
        members.remove_member(team_for(who, Permission.MANAGE, team_id), user_id, who.user)
        return Response(status=204)


class InvitationsView(APIView):
    @extend_schema(
        operation_id="invitations_list", responses={200: page_of("InvitationPage", InvitationSerializer), **PROBLEMS}
    )
    def get(self, request: Request, team_id: str) -> Response:
        team = team_for(principal(request), Permission.MANAGE, team_id)
        rows = team.invitations.select_related("created_by", "accepted_by").order_by("-id")
        return Response(listed(InvitationSerializer(rows, many=True).data))

    @extend_schema(
        operation_id="invitations_create",
        request=NewInvitationSerializer,
        responses={201: MadeInvitationSerializer, **PROBLEMS},
    )
    def post(self, request: Request, team_id: str) -> Response:
        who = principal(request)
        team = team_for(who, Permission.MANAGE, team_id)
        asked = read(NewInvitationSerializer, request)
        hours, note = asked.get("expires_in_hours", 72), asked.get("note", "")
        row, token = members.invite(team, Role(asked["role"]), hours, note, who.user)
        # Behind the #, so that it is in no server's log.
        url = f"{settings.ATHANOR.public_url}/invitation#{token}"
        return Response({**InvitationSerializer(row).data, "token": token, "url": url}, status=201)


class InvitationView(APIView):
    @extend_schema(operation_id="invitations_revoke", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, invitation_id: str) -> Response:
        who = principal(request)
        row = invitation_of(who, invitation_id)
        check(who, Permission.MANAGE, row.team_id)
        members.revoke_invitation(row, who.user)
        return Response(status=204)


class AcceptView(APIView):
    """Open to who has no account yet: the invitation's token is what lets them in."""

    permission_classes = (AllowAny,)

    @extend_schema(
        operation_id="invitations_accept", request=AcceptSerializer, responses={201: MemberSerializer, **PROBLEMS}
    )
    def post(self, request: Request) -> Response:
        given = request.data if isinstance(request.data, dict) else {}
        if not given.get("token"):
            raise Unauthenticated("invalid_invitation", "no invitation was given", remedy="send its token")
        asked = read(AcceptSerializer, request)
        if isinstance(request.auth, Principal):
            row = members.accept(asked["token"], request.auth.user)
        else:
            new = read(_NewUserSerializer, request)
            row = members.accept_as_new(asked["token"], new["username"], new["password"])
        return Response(MemberSerializer(row).data, status=201)


class ServiceAccountsView(APIView):
    @extend_schema(
        operation_id="service_accounts_list",
        responses={200: page_of("ServiceAccountPage", ServiceAccountSerializer), **PROBLEMS},
    )
    def get(self, request: Request, team_id: str) -> Response:
        team = team_for(principal(request), Permission.MANAGE, team_id)
        return Response(listed(ServiceAccountSerializer(service_accounts_of(team), many=True).data))

    @extend_schema(
        operation_id="service_accounts_create",
        request=NewServiceAccountSerializer,
        responses={201: ServiceAccountSerializer, **PROBLEMS},
    )
    def post(self, request: Request, team_id: str) -> Response:
        who = principal(request)
        team = team_for(who, Permission.MANAGE, team_id)
        asked = read(NewServiceAccountSerializer, request)
        account = members.create_service_account(team, asked["name"], Role(asked["role"]), who.user)
        return Response(ServiceAccountSerializer(account).data, status=201)


class ServiceAccountView(APIView):
    @extend_schema(operation_id="service_accounts_retire", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, account_id: str) -> Response:
        who = principal(request)
        members.retire_service_account(_managed(who, account_id), who.user)
        return Response(status=204)


class ServiceAccountTokensView(APIView):
    @extend_schema(
        operation_id="service_accounts_token",
        request=ScopedSerializer,
        responses={201: NewTokenSerializer, **PROBLEMS},
    )
    def post(self, request: Request, account_id: str) -> Response:
        who = principal(request)
        account = _managed(who, account_id)
        assert account.service_team is not None
        asked = read(ScopedSerializer, request)
        scopes, expires_at = narrowed(who, asked)
        row, token = services.issue_token(
            account, account.service_team, asked["name"], expires_at, scopes=scopes, actor=who.user
        )
        return issued(row, token)


class _NewUserSerializer(serializers.Serializer[Any]):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(trim_whitespace=False, max_length=200)


def read(shape: type[serializers.Serializer[Any]], request: Request) -> dict[str, Any]:
    asked = shape(data=request.data)
    asked.is_valid(raise_exception=True)
    found: dict[str, Any] = dict(asked.validated_data)
    return found


def _seen(who: Principal, team_id: str) -> Any:
    """A team that they belong to, or manage."""
    permission = Permission.MANAGE_TEAMS if Permission.MANAGE_TEAMS in who.platform else Permission.VIEW
    return team_for(who, permission, team_id)


def _managed(who: Principal, account_id: str) -> User:
    account = service_account_of(who, account_id)
    check(who, Permission.MANAGE, str(account.service_team_id))
    return account
