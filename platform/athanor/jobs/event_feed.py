"""The event feed of a team: its events in the order in which their transactions were committed.

A number drawn while a transaction runs can become visible after a higher one, and a reader that has read up to the
higher one never sees it. So events are written without a number and get it afterwards, from one writer at a time, which
numbers what is committed by then: a late commit gets a higher number than everything that was read before it.

Readers of a feed call `assign_numbers` first; a reconciler does so for webhooks. A submission does not wait for it.
"""

from collections.abc import Collection, Mapping

from django.db import connection, transaction
from django.db.models import QuerySet

from athanor.jobs.models import EventHead, JobEvent

BATCH = 1000
LOCK = 0x617468_66656564  # of the numbering writer: "athfeed" as a number, so that no other lock is the same
# Ids grow within a job, because its events are written under its row lock: the order here keeps each job's own.
NUMBER = """
WITH fresh AS (
    SELECT id, team_id, row_number() OVER (PARTITION BY team_id ORDER BY id) AS nth
    FROM (SELECT id, team_id FROM jobs_jobevent WHERE team_seq IS NULL ORDER BY id LIMIT %s) AS unnumbered
), counts AS (
    SELECT team_id, count(*) AS count FROM fresh GROUP BY team_id
), heads AS (
    INSERT INTO jobs_eventhead (team_id, seq) SELECT team_id, count FROM counts
    ON CONFLICT (team_id) DO UPDATE SET seq = jobs_eventhead.seq + excluded.seq RETURNING team_id, seq
)
UPDATE jobs_jobevent AS event SET team_seq = heads.seq - counts.count + fresh.nth
FROM fresh JOIN counts USING (team_id) JOIN heads USING (team_id)
WHERE event.id = fresh.id
"""


def unnumbered() -> QuerySet[JobEvent]:
    """Return committed events without a number in their team's feed."""
    return JobEvent.objects.filter(team_seq__isnull=True)


def assign_numbers() -> int:
    """Assign numbers to committed events without one. Return how many."""
    numbered = 0
    while unnumbered().exists():
        with transaction.atomic(), connection.cursor() as cursor:
            # A separate statement, so that its snapshot of committed events is taken after the lock is acquired.
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
            cursor.execute(NUMBER, [BATCH])
            done = cursor.rowcount
        numbered += done
        if done < BATCH:
            break
    return numbered


def newest_numbers(team_ids: Collection[str]) -> dict[str, int]:
    """Return the newest number of each team, 0 for a team without events."""
    known = dict(EventHead.objects.filter(team_id__in=team_ids).values_list("team_id", "seq"))
    return {team_id: known.get(team_id, 0) for team_id in team_ids}


def events_after(positions: Mapping[str, int], limit: int) -> list[JobEvent]:
    """Return the next events after each team's position: in order within a team, team by team."""
    found: list[JobEvent] = []
    for team_id, seq in positions.items():
        rows = JobEvent.objects.filter(team_id=team_id, team_seq__gt=seq).order_by("team_seq")
        found.extend(rows[: limit - len(found)])
    return found


def job_events_after(job_id: str, seq: int, limit: int) -> list[JobEvent]:
    """Return the next events of one job after `seq`. Row-level security limits them to the session's teams."""
    return list(JobEvent.objects.filter(job_id=job_id, seq__gt=seq).order_by("seq")[:limit])
