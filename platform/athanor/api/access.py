"""From a request to who asks and for which team."""

from rest_framework.request import Request

from athanor.accounts.models import Team
from athanor.accounts.selectors import Principal
from athanor.core.errors import FieldProblem, Forbidden, Invalid


def principal(request: Request) -> Principal:
    found = request.auth
    assert isinstance(found, Principal), "every endpoint with a principal needs authentication"
    return found


def team_to_write(who: Principal, name: str | None) -> Team:
    """The named team, or the only one. Raises Invalid for none or too many, Forbidden for a viewer."""
    teams = who.teams
    if name:
        chosen = [team for team in teams if name in (team.name, team.id)]
        if not chosen:
            mine = ", ".join(team.name for team in teams) or "none"
            raise _team_problem("unknown_team", f"you have no team {name!r}; yours: {mine}")
    else:
        chosen = list(teams)
        if len(chosen) != 1:
            mine = ", ".join(team.name for team in teams) or "none"
            raise _team_problem("team_needed", f"name the team; yours: {mine}")
    if chosen[0].id not in who.writable_team_ids:
        raise Forbidden(
            "role_missing",
            f"a viewer of team {chosen[0].name} cannot change anything in it",
            remedy="ask an administrator of the team for the role member",
        )
    return chosen[0]


def check_may_write(who: Principal, team_id: str) -> None:
    if team_id not in who.writable_team_ids:
        raise Forbidden("role_missing", "a viewer cannot change anything", remedy="ask an administrator of the team")


def _team_problem(code: str, detail: str) -> Invalid:
    return Invalid("invalid_spec", detail, remedy=detail, problems=(FieldProblem("/team", code, detail),))
