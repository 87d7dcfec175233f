"""Roles, scopes, limits and delays in docs/concepts/security.md agree with the code."""

import re
from datetime import timedelta
from pathlib import Path
from typing import get_args

from allauth.mfa import app_settings

from athanor.accounts import passkeys, roles, second_factors, throttling
from athanor.api import limits
from athanor.config import protocol
from athanor.config.env import Environment
from athanor.core import documents
from athanor.specs.validation import MAX_SPEC_BYTES

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "concepts" / "security.md").read_text()


def table(heading: str) -> dict[str, str]:
    """Return the first and second column of the table with this heading."""
    _, _, rest = PAGE.partition(f"| {heading} |")
    rows = rest.split("\n\n")[0].splitlines()[2:]
    return {cells[1].strip(): cells[2].strip() for cells in (row.split("|") for row in rows)}


def names(permissions: frozenset[roles.Permission]) -> str:
    return ", ".join(sorted(permission.value for permission in permissions))


def test_roles_have_the_permissions_of_the_page() -> None:
    assert table("role in a team") == {role.value: names(given) for role, given in roles.TEAM_PERMISSIONS.items()}
    of_platform = {role.value: names(given) for role, given in roles.PLATFORM_PERMISSIONS.items() if given}
    assert table("role on the platform") == of_platform


def test_scopes_leave_what_the_page_says() -> None:
    given = {**roles.SCOPE_PERMISSIONS, **roles.PLATFORM_SCOPE_PERMISSIONS}
    assert table("scope") == {scope.value: names(permissions) for scope, permissions in given.items()}
    assert set(given) | {roles.Scope.PLATFORM} == set(roles.Scope)


def test_limits_are_those_of_the_page() -> None:
    said = table("what")
    assert said["headers"] == f"{protocol.HEAD_BYTES // 1024} KiB, within {protocol.HEAD_SECONDS:.0f} s"
    mib = limits.MIB
    assert said["body"] == (
        f"{limits.DEFAULT_BODY_BYTES // mib} MiB; signing in {limits.SIGN_IN_BODY_BYTES // 1024} KiB; "
        f"series {limits.SERIES_BODY_BYTES // mib} MiB; compute nodes {limits.AGENT_BODY_BYTES // mib} MiB; "
        "uploads by the team's quota"
    )
    assert f"{limits.GRACE_SECONDS:.0f} s" in said["time of a body"]
    assert f"{limits.BYTES_PER_SECOND // 1024} KiB/s" in said["time of a body"]
    assert said["a client that takes nothing of its answer"] == f"{protocol.STALL_SECONDS:.0f} s"
    assert said["JSON, YAML"] == (
        f"{documents.MAX_LEVELS} levels; YAML {MAX_SPEC_BYTES // 1024} KiB and {documents.MAX_VALUES:,} values "
        "with its aliases written out"
    )


def test_delays_are_those_of_the_page() -> None:
    allowances = [throttling.ALLOWANCES[kind][0] for kind in ("pair", "name", "address")]
    assert f"After {allowances[0]} ({allowances[1]}, {allowances[2]}) failures" in PAGE
    assert throttling.ALLOWANCES["pair"][1] == throttling.ALLOWANCES["address"][1] == 15 * 60
    assert throttling.ALLOWANCES["name"][1] == 60
    assert throttling.ALLOWANCES["factor"] == throttling.ALLOWANCES["factor_device"] == (5, 15 * 60)
    assert f"for the user over a day: after {throttling.ALLOWANCES['factor'][0]} the next" in PAGE
    assert timedelta(days=1) == throttling.FACTOR_WINDOW


def test_second_factors_are_those_of_the_page() -> None:
    said = table("factor")
    assert second_factors.TOLERATED_STEPS == (-1, 0, 1)
    assert f"{second_factors.STEP_SECONDS} seconds; one step before and after" in said["authenticator app"]
    assert f"within {second_factors.PENDING_SECONDS // 60} minutes" in PAGE
    assert f"for {passkeys.CHALLENGE_SECONDS // 60} minutes" in said["passkey"]
    assert said["recovery codes"].startswith(f"{app_settings.RECOVERY_CODE_COUNT}, shown once")
    demands = Environment.model_fields["require_second_factor"].annotation
    assert all(f"`{value}`" in PAGE or f"={value}`" in PAGE for value in get_args(demands) if value != "off")


def test_the_tests_that_the_page_names_are_there() -> None:
    tests = REPOSITORY / "tests" / "control_plane"
    for name in re.findall(r"`([\w/]+\.py)`", PAGE):
        found = (
            [*tests.rglob(name)]
            if "/" not in name
            else [path for path in (tests / name, REPOSITORY / name) if path.exists()]
        )
        assert found, name
