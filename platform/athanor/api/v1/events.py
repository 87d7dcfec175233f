"""/jobs/{id}/events and /events: pages, long polls and streams of events."""

from collections.abc import Iterator
from typing import Any

from django.http import HttpResponseBase, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.stream_sessions import StreamSession, stream_session_for
from athanor.api.access import get_principal, team_named
from athanor.api.pagination import serialize_many
from athanor.api.parameters import IntegerParameter, refusal
from athanor.api.streams import reads
from athanor.api.streams.frames import MEDIA_TYPE, RETRY, cursor_of, positions_of
from athanor.api.streams.subscription import LONG_POLLING, STREAMING, Subscription, open_subscription
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.events import EVENT_PAGE, TEAM_EVENT_PAGE
from athanor.api.v1.serializers.jobs import EventSerializer
from athanor.jobs import event_feed, selectors
from athanor.jobs.models import JobEvent

MAX_PAGE_EVENTS = 1000
MAX_WAIT_SECONDS = 30
LAST_EVENT_ID = "Last-Event-ID"
STREAM = {(200, MEDIA_TYPE): OpenApiTypes.STR}
LIMIT = IntegerParameter(
    "limit", "Maximum number of events per page.", min_value=1, max_value=MAX_PAGE_EVENTS, default=200
)
WAIT = IntegerParameter(
    "wait", "Maximum time in seconds to wait for an event if there is none.", max_value=MAX_WAIT_SECONDS, default=0
)
AFTER = IntegerParameter("after", "Only events after the one with this `seq`.", default=0)
PAGED = [
    LIMIT.openapi,
    WAIT.openapi,
    OpenApiParameter(
        LAST_EVENT_ID,
        str,
        OpenApiParameter.HEADER,
        description="The `id` of the last event of a stream, to continue it. It takes precedence over `after`.",
    ),  # fmt: skip
]


class EventStreamRenderer(JSONRenderer):
    """Accepts the media type of streams. Errors are JSON."""

    media_type = MEDIA_TYPE
    format = "events"


class EventFeedView(APIView):
    """Base of the views of events: a page, a long poll or a stream."""

    renderer_classes = (JSONRenderer, EventStreamRenderer)

    def answer(
        self, request: Request, subscription: Subscription, rows: list[JobEvent], next_after: Any
    ) -> HttpResponseBase:
        """Return the page, or pass a stream or an empty long poll to the event loop."""
        if isinstance(getattr(request, "accepted_renderer", None), EventStreamRenderer):
            handed = open_subscription(request, STREAMING, subscription)
            return _stream(subscription, once=not handed)
        if not rows and subscription.wait_seconds:
            open_subscription(request, LONG_POLLING, subscription)
        return Response({"items": serialize_many(EventSerializer, rows), "next_after": next_after})


class JobEventsView(EventFeedView):
    """Requests to `/jobs/{job_id}/events`."""

    @extend_schema(
        operation_id="jobs_events",
        parameters=[AFTER.openapi, *PAGED],
        responses={
            (200, "application/json"): EVENT_PAGE,
            **STREAM,
            **PROBLEMS,
        },
    )
    def get(self, request: Request, job_id: str) -> HttpResponseBase:
        """Read or follow the events of a job.

        Returns events in order, from the first. With `wait` the response is delayed until there is an event. With
        `Accept: text/event-stream` it is a stream of server-sent events that stays open: events are unnamed messages
        with an `id`, the newest figures of the running job are `job.progress` messages without one, and a comment is
        sent every 15 seconds."""
        principal = get_principal(request)
        job = selectors.job_of(principal, job_id)
        given = request.headers.get(LAST_EVENT_ID, "")
        after = int(given) if given.isdecimal() and len(given) < 18 else AFTER.read(request)
        heads = event_feed.newest_numbers([job.team_id])
        wait = WAIT.read(request)
        subscription = Subscription(_stream_session(request, heads), heads, {}, job.id, after, wait)
        rows = selectors.events_of(job, after, LIMIT.read(request))
        return self.answer(request, subscription, rows, rows[-1].seq if rows else after)


class EventsView(EventFeedView):
    """Requests to `/events`."""

    @extend_schema(
        operation_id="events_list",
        parameters=[
            OpenApiParameter("team", str, description="Name or id of a team. Without it, events of all your teams."),
            OpenApiParameter(
                "after", str, description="Only events after this position: a `next_after`, an `id` of a stream, or 0."
            ),
            *PAGED,
        ],
        responses={
            (200, "application/json"): TEAM_EVENT_PAGE,
            **STREAM,
            **PROBLEMS,
        },
    )
    def get(self, request: Request) -> HttpResponseBase:
        """Read or follow the events of teams.

        Returns events in the order in which they were committed; none is ever inserted before one that was read. A
        page starts with the oldest event, a stream without a position with what happens from now on. With `wait` the
        response is delayed until there is an event. With `Accept: text/event-stream` it is a stream of server-sent
        events that stays open: events are unnamed messages with an `id`, the newest figures of running jobs are
        `job.progress` messages without one, and a comment is sent every 15 seconds."""
        principal = get_principal(request)
        named = request.query_params.get("team")
        teams = {team_named(principal, Permission.VIEW, named).id} if named else principal.team_ids
        event_feed.assign_numbers()
        heads = event_feed.newest_numbers(teams)
        streams = isinstance(getattr(request, "accepted_renderer", None), EventStreamRenderer)
        source = LAST_EVENT_ID if request.headers.get(LAST_EVENT_ID) else "after"
        cursor = request.headers.get(LAST_EVENT_ID) or request.query_params.get("after") or ("" if streams else "0")
        positions = positions_of(cursor, heads) if cursor else dict(heads)
        if positions is None:
            detail = f"{source}={cursor[:100]!r} was not made by this list"
            raise refusal(source, "cursor", detail, "name the team, or start with after=0")
        wait = WAIT.read(request)
        limit = LIMIT.read(request)
        rows = [] if streams else event_feed.events_after(positions, limit)
        subscription = Subscription(_stream_session(request, heads), heads, positions, wait_seconds=wait)
        reached = {**positions, **{row.team_id: row.team_seq or 0 for row in rows}}
        return self.answer(request, subscription, rows, cursor_of(reached))


def _stream_session(request: Request, heads: dict[str, int]) -> StreamSession:
    return stream_session_for(get_principal(request), heads, getattr(request._request, "session", None))


def _stream(subscription: Subscription, *, once: bool) -> StreamingHttpResponse:
    response = StreamingHttpResponse(_opening(subscription, once), content_type=MEDIA_TYPE)
    response["Cache-Control"] = "no-cache"
    response["X-Accel-Buffering"] = "no"  # proxies must not buffer
    return response


def _opening(subscription: Subscription, once: bool) -> Iterator[bytes]:
    """Yield the start of a stream; without an event loop, one page, after which a client reconnects."""
    yield RETRY
    if once:
        yield reads.read_page(subscription, subscription.positions, subscription.job_after).frames
