"""What the hub asks the database, in its own few threads."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import connection

from athanor.api.streams.following import Following
from athanor.api.streams.frames import cursor_of, event_data, event_frame, progress_frame
from athanor.api.v1.serializers.jobs import serialize_progress_values
from athanor.core import tenancy
from athanor.jobs import feed
from athanor.telemetry.selectors import LiveProgress, newest_progress

PAGE = 500
# Progress is stamped before its commit: one that was committed late is still seen by this much of overlap.
OVERLAP = timedelta(seconds=10)

Result = TypeVar("Result")


def in_thread(team_ids: Collection[str], read: Callable[..., Result], *arguments: object) -> Result:
    """Run `read` where no request is: let in to these teams' rows only, and with the connection given back."""
    try:
        tenancy.restrict(team_ids)
        return read(*arguments)
    finally:
        connection.close()


@dataclass(frozen=True)
class New:
    """One event for all who follow its team or its job."""

    team_id: str
    team_seq: int
    job_id: str
    job_seq: int
    data: bytes


@dataclass(frozen=True)
class Page:
    """What a follower had not seen yet, and where it stands then."""

    frames: bytes
    positions: dict[str, int]
    job_after: int
    more: bool


def news(heads: dict[str, int]) -> list[New]:
    """Events behind `heads`, numbered just now."""
    feed.number()
    current = feed.heads(heads)
    behind = {team_id: seq for team_id, seq in heads.items() if current[team_id] > seq}
    return [
        New(event.team_id, event.team_seq or 0, event.job_id, event.seq, event_data(event))
        for event in feed.after(behind, PAGE)
    ]


def page(following: Following, positions: dict[str, int], job_after: int) -> Page:
    if following.job_id:
        rows = feed.after_in_job(following.job_id, job_after, PAGE)
        frames = [event_frame(str(event.seq), event_data(event)) for event in rows]
        return Page(b"".join(frames), positions, rows[-1].seq if rows else job_after, len(rows) == PAGE)
    feed.number()
    rows = feed.after(positions, PAGE)
    frames, now = [], dict(positions)
    for event in rows:
        now[event.team_id] = event.team_seq or 0
        frames.append(event_frame(cursor_of(now), event_data(event)))
    return Page(b"".join(frames), now, job_after, len(rows) == PAGE)


@dataclass
class ProgressWatch:
    """Which newest numbers were told already."""

    told: dict[str, datetime]
    since: datetime | None = None

    def changes(self, job_ids: Collection[str], team_ids: Collection[str]) -> list[tuple[LiveProgress, bytes]]:
        """The newest numbers of jobs, and of the teams' live jobs, that changed since the last call."""
        found = []
        for told in newest_progress(job_ids, team_ids, self.since and self.since - OVERLAP):
            if self.told.get(told.job_id) == told.progress.updated_at:
                continue
            self.told[told.job_id] = told.progress.updated_at
            self.since = max(self.since or told.progress.updated_at, told.progress.updated_at)
            found.append((told, progress_frame(_progress_data(told))))
        self._forget()
        return found

    def _forget(self) -> None:
        """What lies behind the overlap is not read again."""
        if self.since is not None:
            self.told = {job_id: time for job_id, time in self.told.items() if time >= self.since - OVERLAP}


def _progress_data(told: LiveProgress) -> dict[str, Any]:
    return {
        "type": "job.progress",
        "job_id": told.job_id,
        "progress": serialize_progress_values(told.progress, told.steps_total, told.tokens_seen),
        "log_lines": told.progress.log_lines,
    }
