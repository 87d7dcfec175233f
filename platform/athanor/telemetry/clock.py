"""Times that agents send, limited to what can be."""

from datetime import UTC, datetime

from django.utils import timezone

from athanor.jobs.models import Attempt


class Clock:
    """Limits the times that an agent sends: its clock may be wrong, or the agent malicious."""

    def __init__(self, attempt: Attempt) -> None:
        self._latest = timezone.now()
        self._earliest = min(attempt.created_at, self._latest)

    def bounded(self, time: datetime) -> datetime:
        """Return `time` (UTC, if it has no zone), or the nearer end of the span from the attempt's creation to now."""
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return max(self._earliest, min(aware, self._latest))
