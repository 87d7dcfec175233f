"""Database reads of the hub, which run in its own threads."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import connection

from athanor.api.streams.frames import cursor_of, event_data, event_frame, progress_frame
from athanor.api.streams.subscription import Subscription
from athanor.api.v1.serializers.jobs import serialize_progress_values
from athanor.core import tenancy
from athanor.jobs import event_feed
from athanor.telemetry.selectors import LiveProgress, newest_progress

PAGE = 500
# Progress is stamped before its commit: one that was committed late is still seen by this much of overlap.
OVERLAP = timedelta(seconds=10)

Result = TypeVar("Result")


def in_thread(team_ids: Collection[str], read: Callable[..., Result], *arguments: object) -> Result:
    """Run `read` outside a request, with access to the rows of these teams only, and close the connection."""
    try:
        tenancy.restrict(team_ids)
        return read(*arguments)
    finally:
        connection.close()


@dataclass(frozen=True)
class NewEvent:
    """An event for all subscribers of its team or its job."""

    team_id: str
    team_seq: int
    job_id: str
    job_seq: int
    data: bytes


@dataclass(frozen=True)
class Page:
    """Events that a subscriber had not received, and its position after them."""

    frames: bytes
    positions: dict[str, int]
    job_after: int
    more: bool


def read_new_events(heads: dict[str, int]) -> list[NewEvent]:
    """Assign numbers to committed events, and return those after `heads`."""
    event_feed.assign_numbers()
    current = event_feed.newest_numbers(heads)
    behind = {team_id: seq for team_id, seq in heads.items() if current[team_id] > seq}
    return [
        NewEvent(event.team_id, event.team_seq or 0, event.job_id, event.seq, event_data(event))
        for event in event_feed.events_after(behind, PAGE)
    ]


def read_page(subscription: Subscription, positions: dict[str, int], job_after: int) -> Page:
    """Return the next events of a subscription, at most PAGE."""
    if subscription.job_id:
        rows = event_feed.job_events_after(subscription.job_id, job_after, PAGE)
        frames = [event_frame(str(event.seq), event_data(event)) for event in rows]
        return Page(b"".join(frames), positions, rows[-1].seq if rows else job_after, len(rows) == PAGE)
    event_feed.assign_numbers()
    rows = event_feed.events_after(positions, PAGE)
    frames, now = [], dict(positions)
    for event in rows:
        now[event.team_id] = event.team_seq or 0
        frames.append(event_frame(cursor_of(now), event_data(event)))
    return Page(b"".join(frames), now, job_after, len(rows) == PAGE)


@dataclass
class ProgressWatch:
    """Finds progress that changed since the last call. `sent` has the time of the newest sent progress of each job."""

    sent: dict[str, datetime]
    since: datetime | None = None

    def changes(self, job_ids: Collection[str], team_ids: Collection[str]) -> list[tuple[LiveProgress, bytes]]:
        """Return the progress of jobs, and of the teams' running jobs, that changed since the last call."""
        found = []
        for live in newest_progress(job_ids, team_ids, self.since and self.since - OVERLAP):
            if self.sent.get(live.job_id) == live.progress.updated_at:
                continue
            self.sent[live.job_id] = live.progress.updated_at
            self.since = max(self.since or live.progress.updated_at, live.progress.updated_at)
            found.append((live, progress_frame(_progress_data(live))))
        self._forget()
        return found

    def _forget(self) -> None:
        """Drop times older than OVERLAP, whose progress is not read again."""
        if self.since is not None:
            self.sent = {job_id: time for job_id, time in self.sent.items() if time >= self.since - OVERLAP}


def _progress_data(live: LiveProgress) -> dict[str, Any]:
    return {
        "type": "job.progress",
        "job_id": live.job_id,
        "progress": serialize_progress_values(live.progress, live.steps_total, live.tokens_seen),
        "log_lines": live.progress.log_lines,
    }
