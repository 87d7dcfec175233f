"""Guessing of passwords is slowed down: for a name from one address, for a name from everywhere, for an address.

In the database, because the broker may be away, and then nobody must be let in faster. Each try is counted before the
password is looked at, so that many tries at once are many tries; a right password takes its count back. Names that
nobody has are counted like others, so the answer does not tell who exists.
"""

import hashlib
from datetime import timedelta

from django.db import connection
from django.utils import timezone

from athanor.accounts.models import SignInTries
from athanor.core.errors import TooManyRequests

WINDOW = timedelta(minutes=15)
# The first is what stops a person; the others what stops many machines, and one machine with many names.
MOST_TRIES = {"name-at-address": 5, "name": 50, "address": 50}
COUNT = """
INSERT INTO accounts_signintries AS row (key, count, window_ends) VALUES (%s, 1, now() + %s)
ON CONFLICT (key) DO UPDATE SET
    count = CASE WHEN row.window_ends < now() THEN 1 ELSE row.count + 1 END,
    window_ends = CASE WHEN row.window_ends < now() THEN excluded.window_ends ELSE row.window_ends END
RETURNING count, extract(epoch FROM window_ends - now())
"""


def begin(username: str, address: str) -> None:
    """Count a try. Raises TooManyRequests, with the seconds until the window is over."""
    wait = 0.0
    with connection.cursor() as cursor:
        for kind, key in _keys(username, address).items():
            cursor.execute(COUNT, [key, WINDOW])
            count, seconds = cursor.fetchone()
            if count > MOST_TRIES[kind]:
                wait = max(wait, float(seconds))
    if wait:
        SignInTries.objects.filter(window_ends__lt=timezone.now()).delete()
        seconds_left = int(wait) + 1
        raise TooManyRequests(
            "too_many_sign_ins",
            "there were too many tries to sign in with this name or from this address",
            remedy=f"try again in {seconds_left} seconds",
            retry_after_seconds=seconds_left,
        )


def succeeded(username: str, address: str) -> None:
    """Only the pair starts anew: one right password must not free an address to guess the others."""
    SignInTries.objects.filter(key=_keys(username, address)["name-at-address"]).delete()
    shared = [key for kind, key in _keys(username, address).items() if kind != "name-at-address"]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE accounts_signintries SET count = greatest(count - 1, 0) WHERE key = ANY(%s)", [shared])


def _keys(username: str, address: str) -> dict[str, str]:
    """Digests: what is typed as a name is sometimes a password."""
    name = username.strip().lower()
    written = {"name-at-address": f"{name}\0{address}", "name": name, "address": address}
    return {kind: hashlib.sha256(f"{kind}\0{text}".encode()).hexdigest() for kind, text in written.items()}
