"""What a view hands over to the loop: who follows what, from where on, and by what right."""

from dataclasses import dataclass
from typing import Any

from rest_framework.request import Request

from athanor.accounts.stream_sessions import StreamSession
from athanor.core.errors import TooManyRequests, Unavailable

RETRY_SECONDS = 10
FOLLOWING = "athanor.following"  # in the scope: go on with a stream
WAITING = "athanor.waiting"  # in the scope: drop this answer, ask again when something has happened
WAITED = "athanor.waited"  # in the scope: it was waited for already
CROWDED = "athanor.crowded"  # in the scope: ids of users who follow as much as one user may in this process
FULL = "athanor.full"  # in the scope: this process can bear no more followers


@dataclass(frozen=True)
class Following:
    """Events of one job behind its `job_after`, or of teams behind `positions`.

    `heads` are the newest numbers of the teams' feeds as they were before the first read.
    """

    session: StreamSession
    heads: dict[str, int]
    positions: dict[str, int]
    job_id: str = ""
    job_after: int = 0
    wait_seconds: float = 0.0


def hand_over(request: Request, name: str, following: Following) -> bool:
    """False where no loop runs beneath: under plain WSGI, and in tests that call the view.

    Raises Unavailable for a process with too many streams, TooManyRequests for a user with too many.
    """
    scope: dict[str, Any] | None = request.META.get("asgi.scope")
    if scope is None or WAITED in scope or request.method != "GET":  # HEAD ends with its headers
        return False
    if FULL in scope:
        raise Unavailable(
            "too_many_followers", "too many streams are open here already", remedy="try again soon, or ask without one"
        )
    if following.session.user_id in scope.get(CROWDED, ()):
        raise TooManyRequests(
            "too_many_streams",
            f"{request.user} has as many streams and long polls open here as one user may",
            remedy="close some (pages of the dashboard, `athanor watch`), or follow several jobs by the team's stream",
            retry_after_seconds=RETRY_SECONDS,
        )
    scope[name] = following
    return True
