"""The attempt's token: an HMAC of its id under the platform's key.

It is not stored: a worker that submits an attempt again after a crash computes the same one. It is good while the
attempt lives, and at the longest for its time limit and a grace from its launch.
"""

import hashlib
import hmac
from datetime import timedelta

from django.conf import settings
from django.db.models import F
from django.utils import timezone

from athanor.core.errors import Gone, Unauthenticated
from athanor.jobs.models import Attempt
from athanor.jobs.states import AttemptStatus

PREFIX = "att_"
LIMIT = F("job__resolved_spec__time_limit_seconds")
NODES = F("job__resolved_spec__resources__nodes")
# Most requests of an attempt are reports, which need none of these; the few that do read them then.
LONG = ("submission_text", "end_report", "job__spec", "job__resolved_spec", "job__warnings")
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
    attempts = Attempt.objects.select_related("job__team").annotate(limit=LIMIT, num_nodes=NODES).defer(*LONG)
    attempt = attempts.filter(pk=attempt_id).first()
    if attempt is None:
        raise Unauthenticated("invalid_token", "this is no attempt's token", remedy="use the token of the attempt")
    limit = timedelta(seconds=attempt.limit)
    too_old = attempt.launched_at is not None and timezone.now() > attempt.launched_at + limit + GRACE
    if attempt.status == AttemptStatus.ENDED.value or too_old:
        raise Gone("attempt_over", f"{attempt_id} is over", remedy="end the processes")
    return attempt


def _signature(attempt_id: str) -> str:
    message = f"attempt-token:{attempt_id}".encode()
    return hmac.new(settings.SECRET_KEY.encode(), message, hashlib.sha256).hexdigest()
