"""Streams and long polls on a real server: each event arrives once, in order, and access ends with the right to it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from django.db import OperationalError, transaction

from athanor.accounts import members
from athanor.accounts.models import ApiToken, Membership, Team, User
from athanor.accounts.services import issue_token
from athanor.accounts.stream_sessions import StreamSession
from athanor.api.streams import asgi, hub, reads
from athanor.api.streams.subscription import STREAMING, Subscription
from athanor.jobs import event_feed, events, services
from athanor.jobs.models import Job, JobEvent
from athanor.telemetry import ingest
from deploy.local.handle import wait_until
from tests.control_plane import drive
from tests.control_plane.api.live import LiveServer
from trainer.contract.run import Batch, MetricPoint

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def live(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    monkeypatch.setattr(hub, "TICK_SECONDS", 0.02)
    running = LiveServer()
    yield running
    running.close()


@pytest.fixture
def token(user: User, team: Team) -> str:
    return issue_token(user, team, "subscriber")[1]


def points(attempt: Any, sequence: int, step: int) -> Batch:
    point = MetricPoint(step=step, generation=0, time="2026-01-01T00:00:00Z", values={"train/loss": 2.5})
    return Batch(writer="node-0", sequence=sequence, points=[point])


def test_a_job_is_followed_from_its_first_event_on(live: LiveServer, token: str, submit: Callable[..., Job]) -> None:
    job = submit()
    with live.stream(f"/jobs/{job.id}/events", token) as stream:
        assert stream.response.headers["content-type"] == "text/event-stream"
        assert stream.response.headers["x-request-id"]
        assert int(stream.response.headers["ratelimit-remaining"]) > 0
        first = stream.next_event()
        assert (first.id, first.event, first.data["type"]) == ("1", "", "job.submitted")
        services.request_stop(job.id, "ada")
        second = stream.next_event()
        assert (second.id, second.data["type"]) == ("2", "job.stop_requested")
        assert second.data["job_id"] == job.id


def test_a_team_is_followed_from_now_on_and_resumed_by_the_last_id(
    live: LiveServer, token: str, submit: Callable[..., Job]
) -> None:
    submit()
    with live.stream("/events", token) as stream:
        second = submit()
        frame = stream.next_event()
        assert (frame.id, frame.data["job_id"]) == ("2", second.id)
    missed = [submit().id for _ in range(3)]
    with live.stream("/events", token, Last_Event_ID="2") as stream:
        frames = [stream.next_event() for _ in missed]
        assert [frame.data["job_id"] for frame in frames] == missed
        assert [frame.id for frame in frames] == ["3", "4", "5"]
        last = submit()
        assert stream.next_event().data["job_id"] == last.id


def test_a_backlog_of_many_pages_comes_whole_while_more_is_written(
    live: LiveServer, token: str, submit: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("athanor.api.streams.reads.PAGE", 3)
    monkeypatch.setattr(hub, "MAX_QUEUE", 1)
    for _ in range(10):
        submit()
    with live.stream("/events?after=0", token) as stream:
        seen = [stream.next_event().id]
        for _ in range(10):
            submit()
        seen += [stream.next_event().id for _ in range(19)]
    assert seen == [str(number) for number in range(1, 21)]


def test_newest_numbers_of_a_running_job_come_without_an_id(
    live: LiveServer, token: str, submit: Callable[..., Job]
) -> None:
    attempt = drive.start(submit())
    with (
        live.stream(f"/jobs/{attempt.job_id}/events", token) as of_job,
        live.stream("/events", token) as of_team,
    ):
        ingest.ingest(attempt, "metrics", points(attempt, 0, step=3))
        for stream in (of_job, of_team):
            frame = stream.next_progress()
            assert (frame.event, frame.id) == ("job.progress", "")
            assert frame.data["job_id"] == attempt.job_id
            assert (frame.data["progress"]["step"], frame.data["progress"]["loss"]) == (3, 2.5)
            assert frame.data["progress"]["steps_total"] == 10
        ingest.ingest(attempt, "metrics", points(attempt, 1, step=4))
        assert of_job.next_progress().data["progress"]["step"] == 4


def test_a_follower_of_two_teams_resumes_in_both(
    live: LiveServer, user: User, team: Team, other_team: Team, submit: Callable[..., Job], client: Any
) -> None:
    Membership.objects.create(user=user, team=other_team, role="viewer")
    client.force_login(user)
    session = f"sessionid={client.cookies['sessionid'].value}"
    with live.stream("/events?after=0", "", Cookie=session) as stream:
        submit()
        cursor = stream.next_event().id
    assert cursor == ",".join(sorted([f"{team.id}:1", f"{other_team.id}:0"]))
    submit()
    with live.stream("/events", "", Cookie=session, Last_Event_ID=cursor) as stream:
        assert stream.next_event().data["team_seq"] == 2


def test_an_idle_stream_says_that_it_is_there(live: LiveServer, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "HEARTBEAT_SECONDS", 0.05)
    with live.stream("/events", token) as stream:
        assert stream.next().comment == "still here"


@pytest.mark.parametrize("lost", ["token", "membership", "user", "session", "password"])
def test_a_stream_ends_with_the_right_to_it(
    live: LiveServer, user: User, team: Team, token: str, lost: str, client: Any
) -> None:
    client.force_login(user)
    cookie = {"Cookie": f"sessionid={client.cookies['sessionid'].value}"}
    by_session = lost in ("session", "password")
    with live.stream("/events", "" if by_session else token, **(cookie if by_session else {})) as stream:
        assert stream.response.status_code == 200
        if lost == "token":
            ApiToken.objects.update(revoked_at="2026-01-01T00:00:00Z")
        elif lost == "membership":
            Membership.objects.all().delete()
        elif lost == "user":
            User.objects.update(is_active=False)
        elif lost == "session":
            client.logout()
        else:
            user.set_password("another")
            user.save()
        with pytest.raises(EOFError):
            while True:
                stream.next()


@pytest.mark.parametrize("path", ["/events", "/jobs/{job}/events"])
def test_what_happens_after_a_removal_is_not_delivered(
    live: LiveServer,
    team: Team,
    user: User,
    make_user: Callable[..., User],
    submit: Callable[..., Job],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A revoked session is noticed at any check interval, with and without new events in the same cycle."""
    monkeypatch.setattr(hub, "TICKET_TICKS", 10**9)
    leaver = make_user("leaver", team)
    token = issue_token(leaver, team, "t")[1]
    make_user("boss", team, "admin")
    job = submit()
    with live.stream(path.format(job=job.id), token) as stream:
        for _ in range(20):
            services.request_stop(job.id, "ada")  # until the stream has begun with what is new
            if stream.next().id:
                break
        members.remove_member(team, leaver.id, user)
        submit()
        with transaction.atomic():
            row = Job.objects.select_for_update().get(pk=job.id)
            events.append(row, "secret", actor="ada")
            row.save()
        seen = []
        with pytest.raises(EOFError):
            while True:
                seen.append(stream.next())
    assert "secret" not in [frame.data["type"] for frame in seen if frame.id]


def test_a_page_of_the_past_is_not_read_with_a_right_that_is_gone(
    user: User, team: Team, submit: Callable[..., Job]
) -> None:
    job = submit()
    row, _ = issue_token(user, team, "t")
    subscription = Subscription(
        StreamSession(user.id, frozenset({team.id}), token_id=row.id), {team.id: 0}, {team.id: 0}
    )

    def revoke() -> None:
        ApiToken.objects.update(revoked_at="2026-01-01T00:00:00Z")

    async def read() -> tuple[bytes, bytes, bool]:
        ours = hub.Hub()
        subscriber = ours.add(subscription)
        before = await ours.catch_up(subscriber)
        subscriber.positions = {team.id: 0}
        await ours._read((), revoke)
        after = await ours.catch_up(subscriber)
        ours.remove(subscriber)
        return before, after, subscriber.ended

    before, after, ended = asyncio.run(read())
    assert job.id.encode() in before
    assert (after, ended) == (b"", True)


def test_sessions_are_checked_within_a_second() -> None:
    assert hub.TICKET_TICKS * hub.TICK_SECONDS < 1


def test_one_user_cannot_take_all_places(
    live: LiveServer,
    token: str,
    user: User,
    team: Team,
    make_user: Callable[..., User],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub, "MAX_PER_USER", 1)
    more = issue_token(user, team, "another token of the same user")[1]
    with live.stream("/events", token):
        with live.stream("/events", more) as second:
            assert (second.response.status_code, second.response.headers["retry-after"]) == (429, "10")
        assert live.get("/events?after=0&wait=20", more).json()["code"] == "too_many_streams"
        with live.stream("/events", issue_token(make_user("bo", team), team, "t")[1]) as others:
            assert others.response.status_code == 200
    wait_until(lambda: live.hub.count == 0, "no stream is open", 20)
    with live.stream("/events", more) as freed:
        assert freed.response.status_code == 200


def test_a_stream_that_passed_the_views_check_with_others_ends(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_PER_USER", 1)

    async def add() -> list[bool]:
        ours = hub.Hub()
        both = [ours.add(nobodys(user)) for _ in range(2)]
        for subscriber in both:
            ours.remove(subscriber)
        return [*(subscriber.ended for subscriber in both), bool(ours.users_at_limit())]

    assert asyncio.run(add()) == [False, True, False]


def test_nobody_follows_what_they_may_not_see(
    live: LiveServer, submit: Callable[..., Job], make_user: Callable, other_team: Team
) -> None:
    job = submit()
    stranger = issue_token(make_user("sam", other_team), other_team, "t")[1]
    with live.stream(f"/jobs/{job.id}/events", stranger) as stream:
        assert stream.response.status_code == 404
    with live.stream("/events", "ath_wrong") as stream:
        assert stream.response.status_code == 401
    with live.stream("/events?after=0", stranger) as stream:
        own = submit()
        Job.objects.filter(pk=own.pk).update(team=other_team)
        services.request_stop(own.id, "sam")
        assert stream.next_event().data["type"] == "job.stop_requested", "and nothing of the other team before"


def test_a_long_poll_waits_for_the_next_event(live: LiveServer, token: str, submit: Callable[..., Job]) -> None:
    answers: list[Any] = []
    job = submit()

    def ask(path: str) -> None:
        answers.append(live.get(path, token).json())

    askers = [
        threading.Thread(target=ask, args=(path,))
        for path in (f"/jobs/{job.id}/events?after=1&wait=30", "/events?after=1&wait=30")
    ]
    for asker in askers:
        asker.start()
    wait_until(lambda: live.hub.count == 2, "both requests wait", 20)
    services.request_stop(job.id, "ada")
    for asker in askers:
        asker.join()
    assert [answer["items"][0]["type"] for answer in answers] == ["job.stop_requested"] * 2
    assert {str(answer["next_after"]) for answer in answers} == {"2"}
    wait_until(lambda: live.hub.count == 0, "no stream is open", 20)


def test_a_long_poll_ends_empty_when_its_time_is_over(live: LiveServer, token: str) -> None:
    answer = live.get("/events?after=0&wait=1", token)
    assert answer.json() == {"items": [], "next_after": "0"}
    assert live.get("/events?wait=31", token).status_code == 422


def test_a_question_for_the_headers_alone_is_answered_and_ends(live: LiveServer, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    answer = httpx.head(f"{live.url}/events", headers=headers, timeout=20)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    wait_until(lambda: live.hub.count == 0, "no stream is open", 20)


def test_whoever_comes_when_all_places_are_taken_is_sent_away(
    live: LiveServer, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MAX_SUBSCRIBERS", 0)
    with live.stream("/events", token) as stream:
        assert stream.response.status_code == 503
        assert stream.response.headers["retry-after"]
    assert live.get("/events?after=0", token).status_code == 200, "asking without a stream is always possible"


def test_the_hubs_reads_are_let_in_to_the_followed_teams_only(
    submit: Callable[..., Job], team: Team, other_team: Team
) -> None:
    submit()
    event_feed.assign_numbers()
    with ThreadPoolExecutor(1) as threads:
        seen = [
            threads.submit(reads.in_thread, [each.id], JobEvent.objects.count).result() for each in (team, other_team)
        ]
    assert seen == [1, 0]
    assert JobEvent.objects.count() == 1


def test_a_database_that_is_away_for_a_moment_costs_a_follower_nothing(
    live: LiveServer, token: str, submit: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "PAUSE_SECONDS", 0.05)
    read, failures = (
        {"read_new_events": reads.read_new_events, "read_page": reads.read_page},
        {"read_new_events": 0, "read_page": 0},
    )

    def failing(name: str) -> Callable[..., Any]:
        def fails_twice(*arguments: Any) -> Any:
            failures[name] += 1
            if failures[name] <= 2:
                raise OperationalError("the database is unavailable")
            return read[name](*arguments)

        return fails_twice

    for name in read:
        monkeypatch.setattr(reads, name, failing(name))
    first = submit()
    with live.stream("/events?after=0", token) as stream:
        assert stream.next_event().data["job_id"] == first.id
        second = submit()
        assert stream.next_event().data["job_id"] == second.id
    assert min(failures.values()) > 2


def test_a_stream_ends_after_a_while_so_that_followers_spread(
    live: LiveServer, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "MAX_SECONDS", 0.1)
    monkeypatch.setattr(asgi, "HEARTBEAT_SECONDS", 0.05)
    with live.stream("/events", token) as stream, pytest.raises(EOFError):
        while True:
            stream.next()
    wait_until(lambda: live.hub.count == 0, "no stream is open", 20)


def nobodys(user: User) -> Subscription:
    return Subscription(StreamSession(user.id, frozenset()), {}, {})


def test_a_follower_without_a_team_ends_with_the_others_and_so_does_one_that_was_about_to_begin(user: User) -> None:
    async def close() -> list[bool]:
        ours = hub.Hub()
        early = ours.add(nobodys(user))
        ours.close()
        late = ours.add(nobodys(user))
        for subscriber in (early, late):
            ours.remove(subscriber)
        return [early.ended, late.ended]

    assert asyncio.run(close()) == [True, True]


def test_a_client_that_reads_nothing_is_not_waited_for_once_more(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "SEND_SECONDS", 0.05)
    monkeypatch.setattr(asgi, "HEARTBEAT_SECONDS", 0.05)

    async def follow() -> None:
        never, ours = asyncio.Event(), hub.Hub()

        async def stuck(*_: Any) -> Any:
            await never.wait()

        async def view(scope: Any, receive: Any, send: Any) -> None:
            scope[STREAMING] = nobodys(user)

        application = asgi.StreamingApplication(view, ours)
        async with asyncio.timeout(20):
            await application({"type": "http", "path": "/events"}, stuck, stuck)
        assert ours.count == 0

    asyncio.run(follow())
