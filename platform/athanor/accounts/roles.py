"""Who may do what, as data: one table from role to permission, one from a token's scope to permission.

What somebody may do in a team is what their role there gives, narrowed by the scopes of the token they came with.
"""

from enum import StrEnum


class Permission(StrEnum):
    VIEW = "view"  # read the team's jobs, data sets, members
    DOWNLOAD = "download"  # open models and checkpoints: hands out data keys
    SUBMIT = "submit"  # submit, stop, pause and resume jobs; upload data
    MANAGE = "manage"  # members, invitations, service accounts, secrets
    READ_AUDIT = "read_audit"
    MANAGE_TEAMS = "manage_teams"  # make teams and set their limits
    OPERATE = "operate"  # see sweepers and orphans, and mend them; opens no team's work


class Role(StrEnum):
    """Of a person or a service account in one team."""

    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"


class PlatformRole(StrEnum):
    """Of a person on the whole platform. Neither opens a team's jobs or models: for that one joins the team."""

    NONE = "none"
    AUDITOR = "auditor"
    PLATFORM_ADMIN = "platform_admin"


class Scope(StrEnum):
    READ = "read"
    SUBMIT = "submit"
    ARTIFACTS = "artifacts"
    ADMIN = "admin"
    # The user's platform role; only asked for by name, by users who have one. A change of the role removes it from all
    # their tokens (a trigger, migration 0009), so that none gains power by a later promotion.
    PLATFORM = "platform"


P = Permission
PLATFORM = "platform"  # in a mapping of groups, where a team stands otherwise

TEAM_PERMISSIONS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: frozenset({P.VIEW, P.DOWNLOAD}),
    Role.MEMBER: frozenset({P.VIEW, P.DOWNLOAD, P.SUBMIT}),
    Role.ADMIN: frozenset({P.VIEW, P.DOWNLOAD, P.SUBMIT, P.MANAGE, P.READ_AUDIT}),
}

# In every team (MANAGE, READ_AUDIT) and of the platform itself (MANAGE_TEAMS, OPERATE).
PLATFORM_PERMISSIONS: dict[PlatformRole, frozenset[Permission]] = {
    PlatformRole.NONE: frozenset(),
    PlatformRole.AUDITOR: frozenset({P.READ_AUDIT}),
    PlatformRole.PLATFORM_ADMIN: frozenset({P.MANAGE, P.READ_AUDIT, P.MANAGE_TEAMS, P.OPERATE}),
}

SCOPE_PERMISSIONS: dict[Scope, frozenset[Permission]] = {
    Scope.READ: frozenset({P.VIEW}),
    Scope.SUBMIT: frozenset({P.VIEW, P.SUBMIT}),
    Scope.ARTIFACTS: frozenset({P.VIEW, P.DOWNLOAD}),
    Scope.ADMIN: frozenset({P.VIEW, P.MANAGE, P.READ_AUDIT}),
    Scope.PLATFORM: frozenset(),
}

DEFAULT_SCOPES = (Scope.READ, Scope.SUBMIT, Scope.ARTIFACTS, Scope.ADMIN)


def default_scopes() -> list[str]:
    """All that a role in the team can give. Tokens made before there were scopes have these."""
    return [scope.value for scope in DEFAULT_SCOPES]


def permissions(role: Role, scopes: frozenset[Scope] | None = None) -> frozenset[Permission]:
    """Of a role in its team; `scopes` None is a session, which is not narrowed."""
    given = TEAM_PERMISSIONS[role]
    if scopes is None:
        return given
    return given & frozenset().union(*(SCOPE_PERMISSIONS[scope] for scope in scopes))


def missing_for(role: Role, scopes: frozenset[Scope] | None) -> list[Permission]:
    """Return what a role in a team allows and `scopes` do not, sorted; nothing for a session, whose scopes are None."""
    if scopes is None:
        return []
    held = frozenset[Permission]().union(*(SCOPE_PERMISSIONS[scope] for scope in scopes))
    return sorted(TEAM_PERMISSIONS[role] - held)


def platform_permissions(role: PlatformRole, scopes: frozenset[Scope] | None = None) -> frozenset[Permission]:
    if scopes is not None and Scope.PLATFORM not in scopes:
        return frozenset()
    return PLATFORM_PERMISSIONS[role]


def parse_group_roles(text: str) -> dict[str, tuple[str, str]]:
    """`group=team:role` and `group=platform:role`, separated by commas. Raises ValueError naming the piece."""
    found = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        group, equals, meaning = piece.rpartition("=")
        team, colon, role = meaning.partition(":")
        roles = [member.value for member in (PlatformRole if team == PLATFORM else Role)]
        if not (group and equals and team and colon and role in roles):
            raise ValueError(f"{piece!r}: write group=team:role or group=platform:role; roles: {', '.join(roles)}")
        if group in found:
            raise ValueError(f"{piece!r}: group {group!r} has a meaning already; give it one")
        found[group] = (team, role)
    return found
