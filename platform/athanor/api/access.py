"""Find the caller and the team of a request, and check whether role and token allow it."""

from rest_framework.request import Request

from athanor.accounts.models import Team
from athanor.accounts.roles import TEAM_PERMISSIONS, Permission, Role, missing_for, scopes_for
from athanor.accounts.selectors import Principal, team_of
from athanor.core import tenancy
from athanor.core.errors import FieldProblem, Forbidden, Invalid


def get_principal(request: Request) -> Principal:
    """Return who makes the request."""
    found = request.auth
    assert isinstance(found, Principal), "every endpoint with a principal needs authentication"
    return found


def check(principal: Principal, permission: Permission, team_id: str) -> None:
    """Raise Forbidden naming the role, or the token's scope, that is missing."""
    if principal.may(permission, team_id):
        return
    roles = " or ".join(role.value for role, given in TEAM_PERMISSIONS.items() if permission in given)
    if principal.scopes is None:
        remedy = f"ask an administrator of the team for the role {roles}"
    else:
        remedy = f"use a token whose scopes allow it, of a user with the role {roles} in the team"
    raise Forbidden("role_missing", f"this needs the permission {permission.value!r}", remedy=remedy)


def check_may_grant(principal: Principal, role: Role) -> None:
    """Raise Forbidden if the role allows more than the token that would give it."""
    missing = missing_for(role, principal.scopes)
    if missing:
        names = ", ".join(permission.value for permission in missing)
        raise Forbidden(
            "scope_missing",
            f"the role {role.value!r} allows {names}, which the scopes of your token do not",
            remedy="give a lesser role, use a token with the scopes read, submit, artifacts and admin, or sign in",
        )


def team_for(principal: Principal, permission: Permission, team_id: str) -> Team:
    """Return the team of an address. Raises NotFound if the caller cannot see it, Forbidden without the permission."""
    team = team_of(principal, team_id)
    check(principal, permission, team.id)
    if team.id not in principal.team_ids:
        tenancy.let_in(team.id)  # by their role on the platform
    return team


def team_named(principal: Principal, permission: Permission, name: str | None) -> Team:
    """Return the caller's team with this name or id, or the only one. Raises Invalid for none or several."""
    teams = principal.teams
    mine = ", ".join(team.name for team in teams) or "none"
    if name:
        chosen = [team for team in teams if name in (team.name, team.id)]
        if not chosen:
            raise _team_problem("unknown_team", f"you have no team {name!r}; yours: {mine}", "name one of yours")
    else:
        chosen = list(teams)
        if len(chosen) != 1:
            if not chosen:
                raise _team_problem("team_needed", "you are in no team", "ask a team's administrator for an invitation")
            detail = f"you are in several teams and the request names none of them: {mine}"
            raise _team_problem("team_needed", detail, f'name one, as in "team": "{chosen[0].name}"')
    check(principal, permission, chosen[0].id)
    return chosen[0]


def team_to_write(principal: Principal, name: str | None) -> Team:
    """Return the caller's team with this name or id, or the only one. Raises Invalid, or Forbidden for a viewer."""
    return team_named(principal, Permission.SUBMIT, name)


def check_may_write(principal: Principal, team_id: str) -> None:
    """Raise Forbidden unless the caller may submit jobs in the team."""
    check(principal, Permission.SUBMIT, team_id)


def check_platform(principal: Principal, permission: Permission) -> None:
    """Raise Forbidden unless a platform role gives the caller the permission."""
    if permission not in principal.platform:
        raise Forbidden(
            "role_missing",
            f"this needs the permission {permission.value!r} on the platform",
            remedy=f"ask a platform administrator; a token needs the scope {' or '.join(scopes_for(permission))}",
        )


def _team_problem(code: str, detail: str, remedy: str) -> Invalid:
    return Invalid("invalid_spec", detail, remedy=remedy, problems=(FieldProblem("/team", code, detail),))
