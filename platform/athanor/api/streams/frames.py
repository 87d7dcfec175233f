"""Events as the lines of a server-sent stream."""

import json
from typing import Any

from athanor.api.v1.serializers.jobs import EventSerializer
from athanor.jobs.models import JobEvent

MEDIA_TYPE = "text/event-stream"
RETRY = b"retry: 2000\n\n"
HEARTBEAT = b": still here\n\n"
PROGRESS = "job.progress"
MAX_DIGITS = 18  # digits that fit into a column


def encode(data: Any) -> bytes:
    """Return `data` as one line of JSON."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def event_data(event: JobEvent) -> bytes:
    """Return an event as one line of JSON."""
    return encode(EventSerializer(event).data)


def event_frame(identifier: str, data: bytes) -> bytes:
    """Return an event without a name, so that a browser's `onmessage` sees every type; the type is in the data."""
    return b"id: %b\ndata: %b\n\n" % (identifier.encode(), data)


def progress_frame(progress: dict[str, Any]) -> bytes:
    """Return a named event without an id: progress is replaced by the next one, so a client does not resume it."""
    return b"event: %b\ndata: %b\n\n" % (PROGRESS.encode(), encode(progress))


def cursor_of(positions: dict[str, int]) -> str:
    """Return the cursor of a reader of feeds: one number, or one for each team."""
    if len(positions) == 1:
        return str(next(iter(positions.values())))
    return ",".join(f"{team_id}:{seq}" for team_id, seq in sorted(positions.items()))


def positions_of(cursor: str, heads: dict[str, int]) -> dict[str, int] | None:
    """Return the position in each team's feed, None for a malformed cursor.

    A team that the cursor does not name starts at its head.
    """
    if cursor.isdecimal() and len(cursor) <= MAX_DIGITS and (len(heads) == 1 or int(cursor) == 0):
        return dict.fromkeys(heads, int(cursor))
    positions = dict(heads)
    for part in cursor.split(","):
        team_id, _, seq = part.partition(":")
        if not team_id or not seq.isdecimal() or len(seq) > MAX_DIGITS:
            return None
        if team_id in positions:
            positions[team_id] = int(seq)
    return positions
