"""What the backend itself kept of an attempt's output: what its agent could not say, above all why it never began."""

import logging
from datetime import UTC, datetime

from athanor.backends.base import BackendUnavailable, LogPart
from athanor.dispatch.services import backend_of, handle_of
from athanor.jobs.models import Attempt
from athanor.telemetry import ingest
from trainer.contract.run import Batch, LogLine

log = logging.getLogger(__name__)

MAX_LINES = 500
MAX_PARTS = 40
WRITER = "backend"


def read(attempt: Attempt, cursor: str | None) -> LogPart:
    """From its backend, now. May raise BackendUnavailable. Call outside any transaction."""
    return backend_of(attempt.job.pool.cluster).logs(handle_of(attempt), cursor)


def keep_last_words(attempt: Attempt) -> None:
    """Copy the end of that output into the job's log. Idempotent; skipped if the backend is unavailable."""
    text, cursor = "", None
    try:
        for _ in range(MAX_PARTS):
            part = read(attempt, cursor)
            if not part.text:
                break
            text, cursor = (text + part.text)[-MAX_LINES * 1000 :], part.cursor
    except BackendUnavailable as error:
        log.warning("the output of attempt %s is not kept: %s", attempt.id, error)
        return
    now = datetime.now(UTC)
    lines = [LogLine(time=now, rank=-1, stream="agent", text=line[:10_000]) for line in text.splitlines()[-MAX_LINES:]]
    if lines:
        ingest.ingest(attempt, "logs", Batch(writer=WRITER, sequence=0, lines=lines))
