"""Roles, scopes and permissions as data: one table from role to permission, one from a token's scope to permission.

What a user may do in a team is what their role there gives, narrowed by the scopes of their token.
"""

from enum import StrEnum


class Permission(StrEnum):
    """What a role allows: in a team, or on the platform."""

    VIEW = "view"  # read the team's jobs, data sets, members
    DOWNLOAD = "download"  # open models and checkpoints: hands out data keys
    SUBMIT = "submit"  # submit, stop, pause and resume jobs; upload data
    MANAGE = "manage"  # members, invitations, service accounts, secrets
    READ_AUDIT = "read_audit"
    MANAGE_TEAMS = "manage_teams"  # make teams
    MANAGE_QUOTAS = "manage_quotas"  # the tree of quotas, limits of teams, settings of admission
    MANAGE_BUDGETS = "manage_budgets"  # budgets, prices, series
    OPERATE = "operate"  # clusters, reconcilers, orphans, recorded decisions; opens no team's work
    OVERSEE = "oversee"  # see every team's queue, quotas, budgets and costs; simulate


class Role(StrEnum):
    """The role of a user or a service account in one team."""

    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"


class PlatformRole(StrEnum):
    """The role of a user on the whole platform. None gives access to a team's jobs or models."""

    NONE = "none"
    AUDITOR = "auditor"
    PLATFORM_ADMIN = "platform_admin"


class Scope(StrEnum):
    """What a token is limited to."""

    READ = "read"
    SUBMIT = "submit"
    ARTIFACTS = "artifacts"
    ADMIN = "admin"
    # Parts of the user's platform role; only asked for by name, by users who have one. A change of the role removes
    # them from all their tokens (a trigger, migration 0012), so that none gains power by a later promotion.
    PLATFORM_CLUSTERS = "platform:clusters"
    PLATFORM_QUOTAS = "platform:quotas"
    PLATFORM_BUDGETS = "platform:budgets"
    PLATFORM_PEOPLE = "platform:people"
    PLATFORM_AUDIT = "platform:audit"
    PLATFORM = "platform"  # deprecated: all of these


P = Permission
PLATFORM = "platform"  # in a mapping of groups, where a team stands otherwise

TEAM_PERMISSIONS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: frozenset({P.VIEW, P.DOWNLOAD}),
    Role.MEMBER: frozenset({P.VIEW, P.DOWNLOAD, P.SUBMIT}),
    Role.ADMIN: frozenset({P.VIEW, P.DOWNLOAD, P.SUBMIT, P.MANAGE, P.READ_AUDIT}),
}

# In every team (MANAGE, READ_AUDIT) and of the platform itself (the others).
PLATFORM_PERMISSIONS: dict[PlatformRole, frozenset[Permission]] = {
    PlatformRole.NONE: frozenset(),
    PlatformRole.AUDITOR: frozenset({P.READ_AUDIT, P.OVERSEE}),
    PlatformRole.PLATFORM_ADMIN: frozenset(
        {P.MANAGE, P.READ_AUDIT, P.MANAGE_TEAMS, P.MANAGE_QUOTAS, P.MANAGE_BUDGETS, P.OPERATE, P.OVERSEE}
    ),
}

SCOPE_PERMISSIONS: dict[Scope, frozenset[Permission]] = {
    Scope.READ: frozenset({P.VIEW}),
    Scope.SUBMIT: frozenset({P.VIEW, P.SUBMIT}),
    Scope.ARTIFACTS: frozenset({P.VIEW, P.DOWNLOAD}),
    Scope.ADMIN: frozenset({P.VIEW, P.MANAGE, P.READ_AUDIT}),
}

# What a scope leaves of the user's platform role. It gives nothing in a team by the user's role there.
PLATFORM_SCOPE_PERMISSIONS: dict[Scope, frozenset[Permission]] = {
    Scope.PLATFORM_CLUSTERS: frozenset({P.OPERATE}),
    Scope.PLATFORM_QUOTAS: frozenset({P.MANAGE_QUOTAS, P.OVERSEE}),
    Scope.PLATFORM_BUDGETS: frozenset({P.MANAGE_BUDGETS, P.OVERSEE}),
    Scope.PLATFORM_PEOPLE: frozenset({P.MANAGE, P.MANAGE_TEAMS}),
    Scope.PLATFORM_AUDIT: frozenset({P.READ_AUDIT, P.OVERSEE}),
}
PLATFORM_SCOPES = frozenset({*PLATFORM_SCOPE_PERMISSIONS, Scope.PLATFORM})

DEFAULT_SCOPES = (Scope.READ, Scope.SUBMIT, Scope.ARTIFACTS, Scope.ADMIN)


def default_scopes() -> list[str]:
    """Return all that a role in the team can give. Tokens created before there were scopes have these."""
    return [scope.value for scope in DEFAULT_SCOPES]


def permissions(role: Role, scopes: frozenset[Scope] | None = None) -> frozenset[Permission]:
    """Return the permissions of a role in its team; `scopes` None is a session, which is not narrowed."""
    given = TEAM_PERMISSIONS[role]
    if scopes is None:
        return given
    return given & frozenset().union(*(SCOPE_PERMISSIONS.get(scope, frozenset()) for scope in scopes))


def missing_for(role: Role, scopes: frozenset[Scope] | None) -> list[Permission]:
    """Return what a role in a team allows and `scopes` do not, sorted; nothing for a session, whose scopes are None."""
    if scopes is None:
        return []
    held = frozenset[Permission]().union(*(SCOPE_PERMISSIONS.get(scope, frozenset()) for scope in scopes))
    return sorted(TEAM_PERMISSIONS[role] - held)


def platform_permissions(role: PlatformRole, scopes: frozenset[Scope] | None = None) -> frozenset[Permission]:
    """Return what a role gives on the platform; `scopes` None is a session, which is not narrowed."""
    given = PLATFORM_PERMISSIONS[role]
    if scopes is None or Scope.PLATFORM in scopes:
        return given
    return given & frozenset().union(*(PLATFORM_SCOPE_PERMISSIONS.get(scope, frozenset()) for scope in scopes))


def includes(held: frozenset[Scope], scope: Scope) -> bool:
    """Return whether a token with the scopes `held` has `scope`: `platform` includes its parts."""
    return scope in held or (scope in PLATFORM_SCOPES and Scope.PLATFORM in held)


def scopes_for(permission: Permission) -> list[str]:
    """Return the narrowest scopes that allow a permission on the platform, for messages."""
    return [scope.value for scope, given in PLATFORM_SCOPE_PERMISSIONS.items() if permission in given]


def parse_group_roles(text: str) -> dict[str, tuple[str, str]]:
    """Parse `group=team:role` and `group=platform:role`, separated by commas.

    Raise ValueError naming the invalid piece.
    """
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
