"""What a view passes to the event loop: who is subscribed to which events, from which position."""

from dataclasses import dataclass
from typing import Any

from rest_framework.request import Request

from athanor.accounts.stream_sessions import StreamSession
from athanor.core.errors import TooManyRequests, Unavailable

RETRY_SECONDS = 10
STREAMING = "athanor.streaming"  # in the scope: continue the response as a stream
LONG_POLLING = "athanor.long_polling"  # in the scope: drop this response, call the view again when there is an event
LONG_POLLED = "athanor.long_polled"  # in the scope: the view is called again after the wait
USERS_AT_LIMIT = (
    "athanor.users_at_limit"  # in the scope: ids of users with the maximum of subscriptions in this process
)
AT_CAPACITY = "athanor.at_capacity"  # in the scope: this process has its maximum of subscribers


@dataclass(frozen=True)
class Subscription:
    """A subscription to the events of one job after `job_after`, or of teams after `positions`.

    `heads` are the newest numbers of the teams' feeds as they were before the first read.
    """

    session: StreamSession
    heads: dict[str, int]
    positions: dict[str, int]
    job_id: str = ""
    job_after: int = 0
    wait_seconds: float = 0.0


def open_subscription(request: Request, name: str, subscription: Subscription) -> bool:
    """Store the subscription in the ASGI scope under `name`, so that the event loop continues the response.

    Return False if there is no event loop: under plain WSGI, and in tests that call the view. Raises Unavailable if the
    process has too many streams, TooManyRequests if the user has too many.
    """
    scope: dict[str, Any] | None = request.META.get("asgi.scope")
    if scope is None or LONG_POLLED in scope or request.method != "GET":  # HEAD ends with its headers
        return False
    if AT_CAPACITY in scope:
        raise Unavailable(
            "too_many_followers", "too many streams are open here already", remedy="try again soon, or ask without one"
        )
    if subscription.session.user_id in scope.get(USERS_AT_LIMIT, ()):
        raise TooManyRequests(
            "too_many_streams",
            f"{request.user} has as many streams and long polls open here as one user may",
            remedy="close some (pages of the dashboard, `athanor watch`), or follow several jobs by the team's stream",
            retry_after_seconds=RETRY_SECONDS,
        )
    scope[name] = subscription
    return True
