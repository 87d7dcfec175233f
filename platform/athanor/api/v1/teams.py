"""/teams: teams, their members, invitations and service accounts."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts import members, services
from athanor.accounts.models import Membership, User
from athanor.accounts.roles import Permission, Role, Scope
from athanor.accounts.selectors import (
    Principal,
    invitation_of,
    invitations_of,
    member_of,
    members_of,
    offers_to,
    service_account_of,
    service_accounts_of,
)
from athanor.api.access import check, check_may_grant, check_platform, get_principal, team_for
from athanor.api.bodies import parse_body, read_field
from athanor.api.etags import IF_MATCH, compute_etag, if_match_check, with_etag
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import paginated_response, serialize_many
from athanor.api.v1 import deletions
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.deletions import DeletionSerializer
from athanor.api.v1.serializers.teams import (
    AcceptSerializer,
    DataPolicySerializer,
    InvitationSerializer,
    LimitsSerializer,
    MadeInvitationSerializer,
    MemberSerializer,
    NewInvitationSerializer,
    NewMemberSerializer,
    NewServiceAccountSerializer,
    NewTeamSerializer,
    NewUserSerializer,
    OfferSerializer,
    RoleSerializer,
    ServiceAccountSerializer,
    TeamSerializer,
)
from athanor.api.v1.serializers.tokens import NewTokenSerializer, RevokedSerializer, ScopedSerializer
from athanor.api.v1.tokens import issued, narrowed
from athanor.artifacts import data_policy
from athanor.core.errors import Forbidden, Unauthenticated
from athanor.quotas import services as quotas
from athanor.quotas.models import QuotaNode
from athanor.quotas.selectors import teams_with_leaves


class TeamsView(APIView):
    """Requests to `/teams`."""

    @extend_schema(operation_id="teams_list", responses={200: page_serializer("TeamPage", TeamSerializer), **PROBLEMS})
    def get(self, request: Request) -> Response:
        """List your teams.

        Returns the teams that you belong to, or all teams to platform administrators."""
        rows = teams_with_leaves(get_principal(request))
        return paginated_response(serialize_many(TeamSerializer, rows))

    @extend_schema(
        operation_id="teams_create",
        parameters=IDEMPOTENT,
        request=NewTeamSerializer,
        responses={201: TeamSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Create a team.

        Creates a team with you as its first administrator. For platform administrators."""
        principal = get_principal(request)
        check_platform(principal, Permission.MANAGE_TEAMS)
        asked = parse_body(request, NewTeamSerializer)
        if asked.keys() - {"name"}:
            check_platform(principal, Permission.MANAGE_QUOTAS)
        name = asked.pop("name")
        return run_idempotently(
            request,
            lambda: Response(TeamSerializer(quotas.create_team(name, asked, principal.user)).data, status=201),
        )


class TeamView(APIView):
    """Requests to `/teams/{team_id}`."""

    @extend_schema(operation_id="teams_show", responses={200: TeamSerializer, **PROBLEMS})
    def get(self, request: Request, team_id: str) -> Response:
        """Show a team.

        Returns the team with its limits. The response has an `ETag`."""
        return with_etag(request, TeamSerializer(_visible_team(get_principal(request), team_id)).data)

    @extend_schema(
        operation_id="teams_change",
        parameters=[IF_MATCH],
        request=LimitsSerializer,
        responses={200: TeamSerializer, **PROBLEMS},
    )
    def patch(self, request: Request, team_id: str) -> Response:
        """Change the limits of a team.

        Changes the limits that are sent; the others stay. Running jobs are not stopped. For platform administrators."""
        principal = get_principal(request)
        team = _visible_team(principal, team_id)
        check_platform(principal, Permission.MANAGE_QUOTAS)
        unchanged: Callable[[QuotaNode], None] = if_match_check(
            request, lambda leaf, tag: tag == compute_etag(TeamSerializer(leaf.team).data)
        )
        leaf = quotas.change_limits(team, parse_body(request, LimitsSerializer), principal.user, unchanged)
        return with_etag(request, TeamSerializer(leaf.team).data)

    @extend_schema(
        operation_id="teams_delete",
        parameters=[deletions.PERMANENTLY],
        responses={200: DeletionSerializer, **PROBLEMS},
    )
    def delete(self, request: Request, team_id: str) -> Response:
        """Delete a team.

        Ends all access to the team immediately. The team's data is erased after the undo window. For platform
        administrators."""
        return deletions.delete_team(request, team_id)


class DataPolicyView(APIView):
    """Requests to `/teams/{team_id}/data-policy`."""

    @extend_schema(
        operation_id="teams_set_data_policy", request=DataPolicySerializer, responses={200: TeamSerializer, **PROBLEMS}
    )
    def put(self, request: Request, team_id: str) -> Response:
        """Set what a team requires of data.

        With `requires_data_report`, jobs that train on a data set without a data report, or with critical findings in
        the newest, are refused, and queued ones fail before their first attempt. Jobs that have started continue. For
        administrators of the team."""
        principal = get_principal(request)
        team = team_for(principal, Permission.MANAGE, team_id)
        required = parse_body(request, DataPolicySerializer)["requires_data_report"]
        return Response(TeamSerializer(data_policy.require_report(team, required=required, actor=principal.user)).data)


class MembersView(APIView):
    """Requests to `/teams/{team_id}/members`."""

    @extend_schema(
        operation_id="members_list", responses={200: page_serializer("MemberPage", MemberSerializer), **PROBLEMS}
    )
    def get(self, request: Request, team_id: str) -> Response:
        """List the members of a team.

        Returns people and service accounts with their role in the team."""
        return paginated_response(
            serialize_many(MemberSerializer, members_of(_visible_team(get_principal(request), team_id)))
        )

    @extend_schema(
        operation_id="members_add",
        parameters=IDEMPOTENT,
        request=NewMemberSerializer,
        responses={202: InvitationSerializer, **PROBLEMS},
    )
    def post(self, request: Request, team_id: str) -> Response:
        """Offer membership in a team.

        Offers membership to the user with this name, who accepts or declines it at `/invitations`. The response is
        the same whether there is such a user or not. For administrators of the team."""
        principal = get_principal(request)
        team = team_for(principal, Permission.MANAGE, team_id)
        asked = parse_body(request, NewMemberSerializer)
        role = Role(asked["role"])
        check_may_grant(principal, role)

        def make() -> Response:
            row = members.offer_membership(team, asked["username"], role, principal.user)
            return Response(InvitationSerializer(row).data, status=202)

        return run_idempotently(request, make)


class MemberView(APIView):
    """Requests to `/teams/{team_id}/members/{user_id}`."""

    @extend_schema(operation_id="members_show", responses={200: MemberSerializer, **PROBLEMS})
    def get(self, request: Request, team_id: str, user_id: str) -> Response:
        """Show a member of a team.

        Returns the member with their role. The response has an `ETag`."""
        return with_etag(
            request, MemberSerializer(member_of(_visible_team(get_principal(request), team_id), user_id)).data
        )

    @extend_schema(
        operation_id="members_change",
        parameters=[IF_MATCH],
        request=RoleSerializer,
        responses={200: MemberSerializer, **PROBLEMS},
    )
    def patch(self, request: Request, team_id: str, user_id: str) -> Response:
        """Change the role of a member.

        Sets the role. A team's last administrator cannot lose that role. For administrators of the team."""
        principal = get_principal(request)
        team = team_for(principal, Permission.MANAGE, team_id)
        role = Role(parse_body(request, RoleSerializer)["role"])
        check_may_grant(principal, role)
        unchanged: Callable[[Membership], None] = if_match_check(
            request, lambda row, tag: tag == compute_etag(MemberSerializer(row).data)
        )
        return with_etag(
            request, MemberSerializer(members.set_role(team, user_id, role, principal.user, unchanged)).data
        )

    @extend_schema(
        operation_id="members_remove",
        responses={204: None, **PROBLEMS},
    )
    def delete(self, request: Request, team_id: str, user_id: str) -> Response:
        """Remove a member from a team.

        Ends the membership and revokes the member's tokens for the team. A service account is retired. For
        administrators of the team; anyone may leave a team themselves, signed in to the dashboard."""
        principal = get_principal(request)
        leaves = user_id == principal.user.id and principal.scopes is None
        team = team_for(principal, Permission.VIEW if leaves else Permission.MANAGE, team_id)
        members.remove_member(team, user_id, principal.user)
        return Response(status=204)


class MemberTokensView(APIView):
    """Requests to `/teams/{team_id}/members/{user_id}/tokens:revoke-all`."""

    @extend_schema(
        operation_id="members_revoke_tokens",
        request=None,
        responses={200: RevokedSerializer, **PROBLEMS},
    )
    def post(self, request: Request, team_id: str, user_id: str) -> Response:
        """Revoke the tokens of a member.

        Revokes all of the member's tokens for this team, and the tokens that those created. For administrators of
        the team."""
        principal = get_principal(request)
        team = team_for(principal, Permission.MANAGE, team_id)
        user = member_of(team, user_id).user
        return Response({"revoked": services.revoke_tokens_of(user, principal.user, team=team)})


class InvitationsView(APIView):
    """Requests to `/teams/{team_id}/invitations`."""

    @extend_schema(
        operation_id="invitations_list",
        responses={200: page_serializer("InvitationPage", InvitationSerializer), **PROBLEMS},
    )
    def get(self, request: Request, team_id: str) -> Response:
        """List the invitations of a team.

        Returns all invitations, newest first, including answered, expired and revoked ones. For administrators of
        the team."""
        team = team_for(get_principal(request), Permission.MANAGE, team_id)
        rows = invitations_of(team)
        return paginated_response(serialize_many(InvitationSerializer, rows))

    @extend_schema(
        operation_id="invitations_create",
        parameters=IDEMPOTENT,
        request=NewInvitationSerializer,
        responses={201: MadeInvitationSerializer, **PROBLEMS},
    )
    def post(self, request: Request, team_id: str) -> Response:
        """Create an invitation link.

        Creates a link that one person can use once to join the team. The link is in the response and is not shown
        again. For administrators of the team."""
        principal = get_principal(request)
        team = team_for(principal, Permission.MANAGE, team_id)
        asked = parse_body(request, NewInvitationSerializer)
        hours, note = asked.get("expires_in_hours", 72), asked.get("note", "")
        role = Role(asked["role"])
        check_may_grant(principal, role)

        def make() -> Response:
            row, token = members.invite(team, role, hours, note, principal.user)
            # Behind the #, so that it is in no server's log.
            url = f"{settings.ATHANOR.public_url}/invitation#{token}"
            return Response({**InvitationSerializer(row).data, "token": token, "url": url}, status=201)

        return run_idempotently(request, make)


class InvitationView(APIView):
    """Requests to `/invitations/{invitation_id}`."""

    @extend_schema(operation_id="invitations_revoke", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, invitation_id: str) -> Response:
        """Revoke an invitation.

        Ends an invitation that was not answered. One that was accepted stays as it is. For administrators of the
        team."""
        principal = get_principal(request)
        row = invitation_of(principal, invitation_id)
        check(principal, Permission.MANAGE, row.team_id)
        members.revoke_invitation(row, principal.user)
        return Response(status=204)


class OffersView(APIView):
    """Requests to `/invitations`."""

    @extend_schema(
        operation_id="offers_list", responses={200: page_serializer("OfferPage", OfferSerializer), **PROBLEMS}
    )
    def get(self, request: Request) -> Response:
        """List the invitations offered to you.

        Returns open invitations that name you. Accept or decline each by its id."""
        return paginated_response(serialize_many(OfferSerializer, offers_to(get_principal(request).user)))


class OfferAcceptView(APIView):
    """Requests to `/invitations/{invitation_id}:accept`."""

    @extend_schema(
        operation_id="offers_accept",
        parameters=IDEMPOTENT,
        request=None,
        responses={201: MemberSerializer, **PROBLEMS},
    )
    def post(self, request: Request, invitation_id: str) -> Response:
        """Accept an invitation offered to you.

        Makes you a member of the team, in the role of the invitation. Called with a token, the token needs the scope
        `admin`."""
        user = _user_with_admin_scope(get_principal(request))
        return run_idempotently(request, lambda: _membership_response(members.accept_offer(invitation_id, user)))


class OfferDeclineView(APIView):
    """Requests to `/invitations/{invitation_id}:decline`."""

    @extend_schema(operation_id="offers_decline", request=None, responses={204: None, **PROBLEMS})
    def post(self, request: Request, invitation_id: str) -> Response:
        """Decline an invitation offered to you.

        Closes the invitation; the team's administrators can see that you declined. Called with a token, the token
        needs the scope `admin`."""
        members.decline_offer(invitation_id, _user_with_admin_scope(get_principal(request)))
        return Response(status=204)


class AcceptView(APIView):
    """Requests to `/invitations:accept`. The token of the invitation authenticates them."""

    permission_classes = (AllowAny,)

    @extend_schema(
        operation_id="invitations_accept",
        parameters=IDEMPOTENT,
        request=AcceptSerializer,
        responses={201: MemberSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Accept an invitation link.

        Joins the team by the token of an invitation link. A signed-in user joins as themselves; anyone else sends a
        username and a password and gets an account. Needs no authentication."""
        if not read_field(request, "token"):
            raise Unauthenticated("invalid_invitation", "no invitation was given", remedy="send its token")
        asked = parse_body(request, AcceptSerializer)
        if isinstance(request.auth, Principal):
            user = _user_with_admin_scope(request.auth)
            return run_idempotently(request, lambda: _membership_response(members.accept(asked["token"], user)))
        new = parse_body(request, NewUserSerializer)
        return run_idempotently(
            request,
            lambda: _membership_response(members.accept_as_new(asked["token"], new["username"], new["password"])),
            credential=f"invitation:{services.digest_of(asked['token'])}",
        )


class ServiceAccountsView(APIView):
    """Requests to `/teams/{team_id}/service-accounts`."""

    @extend_schema(
        operation_id="service_accounts_list",
        responses={200: page_serializer("ServiceAccountPage", ServiceAccountSerializer), **PROBLEMS},
    )
    def get(self, request: Request, team_id: str) -> Response:
        """List the service accounts of a team.

        Returns the accounts that programs of the team use. For administrators of the team."""
        team = team_for(get_principal(request), Permission.MANAGE, team_id)
        return paginated_response(serialize_many(ServiceAccountSerializer, service_accounts_of(team)))

    @extend_schema(
        operation_id="service_accounts_create",
        parameters=IDEMPOTENT,
        request=NewServiceAccountSerializer,
        responses={201: ServiceAccountSerializer, **PROBLEMS},
    )
    def post(self, request: Request, team_id: str) -> Response:
        """Create a service account.

        Creates an account without a password, which acts by tokens only. Its username is `NAME@TEAM`. For
        administrators of the team."""
        principal = get_principal(request)
        team = team_for(principal, Permission.MANAGE, team_id)
        asked = parse_body(request, NewServiceAccountSerializer)
        role = Role(asked["role"])
        check_may_grant(principal, role)

        def make() -> Response:
            account = members.create_service_account(team, asked["name"], role, principal.user)
            return Response(ServiceAccountSerializer(account).data, status=201)

        return run_idempotently(request, make)


class ServiceAccountView(APIView):
    """Requests to `/service-accounts/{account_id}`."""

    @extend_schema(operation_id="service_accounts_retire", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, account_id: str) -> Response:
        """Retire a service account.

        Revokes its tokens and ends its membership. Its jobs continue, and its name becomes free. For administrators
        of the team."""
        principal = get_principal(request)
        members.retire_service_account(_managed_account(principal, account_id), principal.user)
        return Response(status=204)


class ServiceAccountTokensView(APIView):
    """Requests to `/service-accounts/{account_id}/tokens`."""

    @extend_schema(
        operation_id="service_accounts_token",
        parameters=IDEMPOTENT,
        request=ScopedSerializer,
        responses={201: NewTokenSerializer, **PROBLEMS},
    )
    def post(self, request: Request, account_id: str) -> Response:
        """Create a token for a service account.

        Creates a bearer token. The token is in the response and is not shown again. A request by a token gets at
        most that token's scopes and lifetime. For administrators of the team."""
        principal = get_principal(request)
        account = _managed_account(principal, account_id)
        team = account.service_team
        assert team is not None
        asked = parse_body(request, ScopedSerializer)
        scopes, expires_at = narrowed(principal, asked)

        def make() -> Response:
            made = services.issue_token(
                account,
                team,
                asked["name"],
                expires_at,
                scopes=scopes,
                actor=principal.user,
                parent_id=principal.token_id,
            )
            return issued(*made)

        return run_idempotently(request, make)


def _membership_response(row: Membership) -> Response:
    return Response(MemberSerializer(row).data, status=201)


def _visible_team(principal: Principal, team_id: str) -> Any:
    """Return a team that the caller belongs to or manages."""
    permission = Permission.MANAGE_TEAMS if Permission.MANAGE_TEAMS in principal.platform else Permission.VIEW
    return team_for(principal, permission, team_id)


def _user_with_admin_scope(principal: Principal) -> User:
    """Return the user of a session, or of a token with the scope `admin`. Raise Forbidden for other tokens."""
    if principal.scopes is not None and Scope.ADMIN not in principal.scopes:
        raise Forbidden(
            "scope_missing",
            "your token does not have the scope 'admin', which answers invitations",
            remedy="sign in to the dashboard, or use a token that has it",
        )
    return principal.user


def _managed_account(principal: Principal, account_id: str) -> User:
    account = service_account_of(principal, account_id)
    check(principal, Permission.MANAGE, str(account.service_team_id))
    return account
