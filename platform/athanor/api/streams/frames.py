"""Events as the lines of a server-sent stream."""

import json
from typing import Any

from athanor.api.v1.serializers.jobs import EventSerializer
from athanor.jobs.models import JobEvent

MEDIA_TYPE = "text/event-stream"
RETRY = b"retry: 2000\n\n"
HEARTBEAT = b": still here\n\n"
PROGRESS = "job.progress"
LONGEST_NUMBER = 18  # digits that fit into a column


def encode(data: Any) -> bytes:
    """One line: JSON holds no line breaks of its own."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def event_data(event: JobEvent) -> bytes:
    return encode(EventSerializer(event).data)


def event_frame(identifier: str, data: bytes) -> bytes:
    """Unnamed, so that a browser's `onmessage` sees every type; the type is in the data."""
    return b"id: %b\ndata: %b\n\n" % (identifier.encode(), data)


def progress_frame(progress: dict[str, Any]) -> bytes:
    """Named and without an id: numbers that the next ones replace are not resumed."""
    return b"event: %b\ndata: %b\n\n" % (PROGRESS.encode(), encode(progress))


def cursor_of(positions: dict[str, int]) -> str:
    """Where a reader of feeds stands: one number, or one a team."""
    if len(positions) == 1:
        return str(next(iter(positions.values())))
    return ",".join(f"{team_id}:{seq}" for team_id, seq in sorted(positions.items()))


def positions_of(cursor: str, heads: dict[str, int]) -> dict[str, int] | None:
    """None for what is no cursor of theirs. A team that the cursor does not know yet starts at its head."""
    if cursor.isdecimal() and len(cursor) <= LONGEST_NUMBER and (len(heads) == 1 or int(cursor) == 0):
        return dict.fromkeys(heads, int(cursor))
    positions = dict(heads)
    for part in cursor.split(","):
        team_id, _, seq = part.partition(":")
        if not team_id or not seq.isdecimal() or len(seq) > LONGEST_NUMBER:
            return None
        if team_id in positions:
            positions[team_id] = int(seq)
    return positions
