"""The attempt's token: an HMAC of its id under the platform's key.

It is not stored: a worker that submits an attempt again after a crash computes the same one. It is good while the
attempt lives, and at the longest for its time limit and a grace from its launch.
"""

import hashlib
import hmac
from datetime import timedelta

from django.conf import settings
from django.db import connection
from django.utils import timezone

from athanor.accounts.models import Team
from athanor.core.errors import Gone, Unauthenticated
from athanor.core.rows import loaded
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import AttemptStatus

PREFIX = "att_"
# Every request of an agent pays for this one, so it is no statement of the ORM, and reads only what reports and the
# rendezvous need; the few requests that need more read it then.
OF_ATTEMPT = ("id", "job_id", "number", "status", "created_at", "launched_at")
OF_JOB = ("id", "team_id", "pool_id", "dataset_id", "status", "desired")
OF_TEAM = ("id", "name", "deleted_at")
RECOGNISE = """
    SELECT attempt.id, attempt.job_id, attempt.number, attempt.status, attempt.created_at, attempt.launched_at,
        job.id, job.team_id, job.pool_id, job.dataset_id, job.status, job.desired, team.id, team.name, team.deleted_at,
        (job.resolved_spec -> 'time_limit_seconds')::int, (job.resolved_spec #> '{resources,nodes}')::int
    FROM jobs_attempt attempt
        JOIN jobs_job job ON job.id = attempt.job_id
        JOIN accounts_team team ON team.id = job.team_id
    WHERE attempt.id = %s
"""
GRACE = timedelta(hours=1)


def issue(attempt_id: str) -> str:
    """Return the token of an attempt. It is the same each time."""
    return f"{attempt_id}.{_signature(attempt_id)}"


def is_signed(token: str) -> bool:
    """Return whether the platform issued this token, for a live attempt or one that is over. Needs no database."""
    attempt_id, _, signature = token.partition(".")
    # As bytes: a header may hold letters that `compare_digest` does not take as text.
    return hmac.compare_digest(signature.encode(), _signature(attempt_id).encode())


def recognise(token: str) -> Attempt:
    """Return the live attempt of a token. Raises Unauthenticated for a wrong token, Gone when the attempt is over."""
    attempt_id = token.partition(".")[0]
    if not is_signed(token):
        raise Unauthenticated("invalid_token", "this is no attempt's token", remedy="use the token of the attempt")
    with connection.cursor() as cursor:
        cursor.execute(RECOGNISE, [attempt_id])
        row = cursor.fetchone()
    if row is None:
        raise Unauthenticated("invalid_token", "this is no attempt's token", remedy="use the token of the attempt")
    values, (limit_seconds, num_nodes) = iter(row[:-2]), row[-2:]
    attempt = loaded(Attempt, **dict(zip(OF_ATTEMPT, values, strict=False)))
    attempt.job = loaded(Job, **dict(zip(OF_JOB, values, strict=False)))
    attempt.job.team = loaded(Team, **dict(zip(OF_TEAM, values, strict=True)))
    attempt.num_nodes = num_nodes  # type: ignore[attr-defined] # of the job's resources, for the rendezvous
    limit = timedelta(seconds=limit_seconds)
    too_old = attempt.launched_at is not None and timezone.now() > attempt.launched_at + limit + GRACE
    if attempt.status == AttemptStatus.ENDED.value or too_old:
        raise Gone("attempt_over", f"{attempt_id} is over", remedy="end the processes")
    return attempt


def _signature(attempt_id: str) -> str:
    message = f"attempt-token:{attempt_id}".encode()
    return hmac.new(settings.SECRET_KEY.encode(), message, hashlib.sha256).hexdigest()
