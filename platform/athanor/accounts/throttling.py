"""Slow down the guessing of passwords without locking users out.

Failed tries are counted for a name at an address, for a name from everywhere, and for an address. Beyond an allowance,
the next try is accepted only after a delay that doubles with each failure. A refused try is not counted, so one machine
cannot use up the tries of a name or of others at its address.

A browser that has signed in before has a signed device cookie for that user. Its tries are counted for the device
alone: regardless of others, the correct password from a known device is accepted.

Wrong second factors are counted for the user, from any address, and separately from passwords: a correct password ends
no delay of codes; otherwise somebody who knows it could guess codes without delay.

The counts are in the database, so that they do not depend on the broker. A try is counted before its password is
checked, so that concurrent tries all count; the correct password reverts its count. Unknown names are counted like
others, so the response does not reveal which users exist.
"""

import hashlib
import ipaddress
from datetime import timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import SignInTries, User
from athanor.core.errors import TooManyRequests
from athanor.core.metrics import SIGN_IN_FAILURES

WINDOW = timedelta(minutes=15)  # after the last failure, the count starts again
# Failures before the first delay, and the longest delay in seconds. A name's own count only matters where many
# addresses guess it together; its delay stays short, as it also holds up its owner on a new device.
ALLOWANCES = {
    "device": (5, 900),
    "pair": (5, 900),
    "name": (50, 60),
    "address": (50, 900),
    "factor": (5, 900),
    "factor_device": (5, 900),
}
FACTOR_WINDOW = timedelta(days=1)  # of codes: at most about a hundred guesses a day
# Nothing is returned where the delay is not over: that row is left as it is.
COUNT = """
INSERT INTO accounts_signintries AS row (key, name_digest, count, free_at, window_ends)
VALUES (%(key)s, %(name)s, 1, now(), now() + %(window)s)
ON CONFLICT (key) DO UPDATE SET
    count = CASE WHEN row.window_ends < now() THEN 1 ELSE row.count + 1 END,
    free_at = CASE WHEN row.window_ends < now() OR row.count + 1 < %(allowance)s THEN now() ELSE now() +
        interval '1 second' * least(%(longest)s, power(2, least(row.count + 1 - %(allowance)s, 20))) END,
    window_ends = now() + %(window)s
WHERE row.free_at <= now() OR row.window_ends < now()
RETURNING count
"""


def begin(username: str, address: str, device: str = "") -> None:
    """Count a try. `device` is the id of a known device of this user, if the browser has proved one.

    Raise TooManyRequests with the seconds until the next try is accepted; then nothing is counted.
    """
    _count(_keys(username, address, device), username, WINDOW)


def succeeded(username: str, address: str, device: str = "") -> None:
    """Revert the count of a try whose password was correct, and end the delays of this name at this address."""
    keys = _keys(username, address, device)
    own = [key for kind, key in keys.items() if kind in ("pair", "device")]
    shared = [key for kind, key in keys.items() if kind in ("name", "address")]
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM accounts_signintries WHERE key = ANY(%s) OR window_ends < now()", [own])
        cursor.execute(
            "UPDATE accounts_signintries SET count = greatest(count - 1, 0), free_at = least(free_at, now()) "
            "WHERE key = ANY(%s)",
            [shared],
        )


def begin_second_factor(user: User, device: str) -> None:
    """Count a try of a second factor. Raise TooManyRequests like `begin`."""
    _count(_factor_keys(user, device), user.username, FACTOR_WINDOW)


def second_factor_succeeded(user: User, device: str) -> None:
    """End the delays of second factors for this user, or for this known device of theirs."""
    SignInTries.objects.filter(key__in=_factor_keys(user, device).values()).delete()


def unlock(user: User, actor: User) -> None:
    """End all delays for a user's name, from all addresses. An address that guesses many names keeps its own delay."""
    name = _digest("name", _folded(user.username))
    with transaction.atomic():
        SignInTries.objects.filter(name_digest=name).delete()
        SignInTries.objects.filter(key=name).delete()
        audit.record("user.unlock", actor=actor, target=("user", user.id))


def _count(keys: dict[str, str], username: str, window: timedelta) -> None:
    name = _digest("name", _folded(username))
    with transaction.atomic(), connection.cursor() as cursor:
        for key, kind in sorted((key, kind) for kind, key in keys.items()):
            allowance, longest = ALLOWANCES[kind]
            # Any: psycopg adapts a timedelta, of which the stubs of `execute` know nothing.
            facts: dict[str, Any] = {
                "key": key, "name": "" if kind in ("name", "address") else name, "window": window,
            }  # fmt: skip
            cursor.execute(COUNT, {**facts, "allowance": allowance, "longest": longest})
            if cursor.rowcount == 0:
                raise _refusal(list(keys.values()))


def _factor_keys(user: User, device: str) -> dict[str, str]:
    if device:
        return {"factor_device": _digest("factor_device", device)}
    return {"factor": _digest("factor", user.pk)}


def _refusal(keys: list[str]) -> TooManyRequests:
    SIGN_IN_FAILURES.labels("throttled").inc()
    times = SignInTries.objects.filter(key__in=keys, free_at__gt=timezone.now()).values_list("free_at", flat=True)
    longest = max((free_at - timezone.now() for free_at in times), default=timedelta())
    seconds = int(longest.total_seconds()) + 1
    return TooManyRequests(
        "too_many_sign_ins",
        "there were too many failed tries to sign in with this name or from this address",
        remedy=f"try again in {seconds} seconds, or use a browser that has signed in before; a platform administrator "
        "can end the delay",
        retry_after_seconds=seconds,
    )


def _keys(username: str, address: str, device: str) -> dict[str, str]:
    """Return the keys by which a try is counted. They are digests: what is typed as a name is sometimes a password."""
    name, network = _folded(username), _network(address)
    if device:
        return {"device": _digest("device", device)}
    return {
        "pair": _digest("pair", f"{name}\0{network}"),
        "name": _digest("name", name),
        "address": _digest("address", network),
    }


def _folded(username: str) -> str:
    return username.strip().lower()


def _network(address: str) -> str:
    """Return the address's network: a host usually has all of an IPv6 /64, which is counted as one."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 6:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


def _digest(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind}\0{text}".encode()).hexdigest()
