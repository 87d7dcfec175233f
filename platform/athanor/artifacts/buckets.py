"""Buckets of other owners that jobs may read, and the teams that each prefix is granted to: ATHANOR_DATA_BUCKETS.

A prefix ends at a `/`: `corp/public` covers the object `public` and everything under `public/`, not `public-payroll`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from django.conf import settings

SCHEME = "s3://"
EVERY_TEAM = "*"
SYNTAX = "write bucket/prefix=team,team;bucket/prefix=* (* grants every team)"
_BUCKET = re.compile(r"[a-z0-9A-Z][a-zA-Z0-9._-]{1,62}")
_TEAM = re.compile(r"[-a-zA-Z0-9_]{1,63}")


@dataclass(frozen=True)
class BucketGrant:
    """`root` is `s3://bucket` or `s3://bucket/prefix`, without a trailing slash.

    `teams` are names; None grants it to all teams.
    """

    root: str
    teams: frozenset[str] | None

    def covers(self, uri: str) -> bool:
        """Return whether `uri` is at or below the root."""
        return is_at_or_below(uri, self.root)

    def includes(self, team: str) -> bool:
        """Return whether the grant includes the team."""
        return self.teams is None or team in self.teams


@lru_cache(maxsize=8)
def parse_grants(text: str) -> tuple[BucketGrant, ...]:
    """Return the grants of a setting such as `corp/public=red,blue;corp/open=*`.

    Raises ValueError for an entry without teams: a bucket is granted to named teams, or to all explicitly.
    """
    return tuple(_parse_entry(entry.strip()) for entry in text.split(";") if entry.strip())


def _parse_entry(entry: str) -> BucketGrant:
    place, separator, listed = (piece.strip() for piece in entry.partition("="))
    teams = [name.strip() for name in listed.split(",") if name.strip()]
    if not separator or not teams:
        raise ValueError(f"{entry!r} names no teams that may read it; {SYNTAX}")
    root = SCHEME + place.removeprefix(SCHEME).rstrip("/")
    bucket, _, prefix = root.removeprefix(SCHEME).partition("/")
    if not _BUCKET.fullmatch(bucket) or (prefix and not is_plain_path(prefix)):
        raise ValueError(f"{place!r} is not a bucket or bucket/prefix; {SYNTAX}")
    if EVERY_TEAM in teams:
        if len(teams) > 1:
            raise ValueError(f"{entry!r} mixes * with names of teams; {SYNTAX}")
        return BucketGrant(root, None)
    for name in teams:
        if not _TEAM.fullmatch(name):
            raise ValueError(f"{name!r} in {entry!r} is not the name of a team; {SYNTAX}")
    return BucketGrant(root, frozenset(teams))


def grants() -> tuple[BucketGrant, ...]:
    """Return the configured grants. The text was validated when the server started."""
    return parse_grants(settings.ATHANOR.data_buckets)


def is_granted(uri: str, team: str) -> bool:
    """Return whether `team` may read what is at or below `uri`."""
    return is_plain_path(uri.removeprefix(SCHEME).removesuffix("/")) and any(
        grant.covers(uri) and grant.includes(team) for grant in grants()
    )


def readable_roots(team: str) -> list[str]:
    """Return the prefixes that `team` may read, for messages."""
    return [grant.root for grant in grants() if grant.includes(team)]


def is_at_or_below(key: str, root: str) -> bool:
    """Return whether `key` is the object `root` or lies in the folder `root/`."""
    folder = root.rstrip("/")
    return key.rstrip("/") == folder or key.startswith(f"{folder}/")


def is_below_any(key: str, roots: Iterable[str]) -> bool:
    """Return whether the object `key` has a plain path at or below one of `roots`."""
    return is_plain_path(key.removeprefix(SCHEME)) and any(is_at_or_below(key, root) for root in roots)


def is_plain_path(path: str) -> bool:
    """Return whether no piece of `path` is empty, `.` or `..`, which clients and servers resolve differently."""
    return all(piece not in ("", ".", "..") for piece in path.split("/"))
