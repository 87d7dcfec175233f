"""Anchors of the audit trail: its head, authenticated, at places outside the database (ATHANOR_AUDIT_ANCHORS).

| place | what is written | read by `verify_audit` |
|---|---|---|
| `file:/PATH` | a line at the end of the file, synced | yes |
| `store`, `s3://BUCKET/PREFIX` | one object for each head, never overwritten | yes |
| `syslog`, `syslog://HOST:PORT` | one message (RFC 5424, facility 13, audit) | `--anchors FILE` |

An anchor proves that the trail had that end at that time. A person who can also remove anchors can hide what came after
the oldest one that is left, so keep at least one place where the platform may add and not remove.
"""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings

from athanor.accounts import audit
from athanor.accounts.audit_chain import Anchor, parse_anchor
from athanor.artifacts import storage
from athanor.core.errors import AthanorError, Misconfigured

PREFIX = "audit-anchors"
SYSLOG_SOCKET = Path("/dev/log")
SYSLOG_PRIORITY = 13 * 8 + 5  # log audit, notice
MAX_OBJECTS_READ = 500  # of the objects of one place, those with the highest numbers


@dataclass
class Anchors:
    """What the configured places hold, oldest first, and what could not be read."""

    anchors: list[Anchor] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def places() -> list[str]:
    """Return the configured places, in the order of ATHANOR_AUDIT_ANCHORS."""
    return [place for part in settings.ATHANOR.audit_anchors.split(",") if (place := part.strip())]


def is_readable(place: str) -> bool:
    """Return whether `verify_audit` can read anchors back from a place."""
    return not place.startswith("syslog")


def write() -> None:
    """Anchor the head at every place that does not have it yet. Raises when one fails, after trying the others.

    A trail that differs from what was anchored is not anchored again: the old anchor stays the newest.
    """
    known = {place: _newest(place) for place in places() if is_readable(place)}
    broken = [said for anchor in known.values() if anchor and (said := audit.contradiction(anchor))]
    if broken:
        raise Misconfigured(
            "audit_trail_broken",
            f"the audit trail differs from its anchors: {'; '.join(broken)}",
            remedy="run `manage.py verify_audit` and compare with a backup",
        )
    anchor = audit.anchor_head()
    failures = []
    for place in places() if anchor else []:
        assert anchor is not None
        newest = known.get(place)
        if newest is not None and (newest.seq, newest.digest) == (anchor.seq, anchor.digest):
            continue
        try:
            _write(place, anchor)
        except (OSError, AthanorError) as error:
            failures.append(f"{place}: {error}")
    if failures:
        raise Misconfigured(
            "audit_anchor_failed",
            f"the audit trail was not anchored at {'; '.join(failures)}",
            remedy="make the place writable for the worker, or correct ATHANOR_AUDIT_ANCHORS",
        )


def read(extra_files: tuple[str, ...] = ()) -> Anchors:
    """Read all anchors of the configured places and of `extra_files` (as exported from syslog)."""
    found = Anchors()
    for place in [*(place for place in places() if is_readable(place)), *(f"file:{name}" for name in extra_files)]:
        try:
            for text, where in _lines(place, MAX_OBJECTS_READ):
                try:
                    found.anchors.append(parse_anchor(text, where))
                except ValueError as error:
                    found.problems.append(f"{where}: {error}")
        except (OSError, AthanorError) as error:
            found.problems.append(f"anchors cannot be read from {place}: {error}")
    return found


def _newest(place: str) -> Anchor | None:
    lines = list(_lines(place, 1))
    return parse_anchor(*lines[-1]) if lines else None


def _write(place: str, anchor: Anchor) -> None:
    line = anchor.line()
    if place.startswith("file:"):
        descriptor = os.open(place.removeprefix("file:"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        try:
            os.write(descriptor, line.encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    elif place.startswith("syslog"):
        _send_to_syslog(place, line)
    else:
        storage.put_new(f"{_prefix(place)}{anchor.seq:016d}-{anchor.digest}.json", line.encode())


def _lines(place: str, max_objects: int) -> Iterator[tuple[str, str]]:
    """Yield each anchor's text and where it is from. A place without an anchor yields nothing."""
    if place.startswith("file:"):
        path = Path(place.removeprefix("file:"))
        lines = path.read_text().splitlines() if path.exists() else []
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield line, f"{place} line {number}"
        return
    for listed in storage.listing(_prefix(place))[-max_objects:]:
        content = storage.get(listed.key)
        if content is not None:
            yield content.decode(errors="replace"), listed.key


def _prefix(place: str) -> str:
    """Return the URI below which a place's objects are, with a slash at its end."""
    if place == "store":
        return f"s3://{storage.bucket()}/{PREFIX}/"
    return f"{place.rstrip('/')}/" if place.count("/") > 2 else f"{place}/{PREFIX}/"


def _send_to_syslog(place: str, line: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    message = f"<{SYSLOG_PRIORITY}>1 {now} {socket.gethostname()} athanor {os.getpid()} audit-anchor - {line}".encode()
    if place == "syslog":
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as local:
            local.sendto(message, str(SYSLOG_SOCKET))
        return
    host, _, port = place.removeprefix("syslog://").partition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as remote:
        remote.sendto(message, address)
