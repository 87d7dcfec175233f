"""A team's events are ordered by commit, and an event that is committed late is never skipped."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from athanor.accounts.models import Team, User
from athanor.jobs import event_feed, events, services
from athanor.jobs.models import EventHead, Job, JobEvent
from tests.control_plane.conftest import Api

WRITERS = 5
EVENTS = 30
ADD = """
INSERT INTO jobs_jobevent (job_id, team_id, seq, type, time, actor, message, data, request_id)
VALUES (%s, %s, %s, 'test.happened', now(), 'test', '', '{}', '')
"""


@contextmanager
def another_connection() -> Iterator[psycopg.Connection[Any]]:
    """Open a second connection to the database, with its own transaction."""
    settings = connection.settings_dict
    with psycopg.connect(
        host=settings["HOST"], port=settings["PORT"], dbname=settings["NAME"], user=settings["USER"],
        password=settings["PASSWORD"],
    ) as other:  # fmt: skip
        yield other


def numbered(team: Team) -> list[tuple[int, str, int]]:
    rows = JobEvent.objects.filter(team=team, team_seq__isnull=False).order_by("team_seq")
    return list(rows.values_list("team_seq", "job_id", "seq"))


@pytest.mark.django_db(transaction=True)
def test_an_event_that_is_committed_late_comes_after_those_that_were_read(
    submit: Callable[..., Job], team: Team
) -> None:
    early, late = submit(), submit()
    event_feed.assign_numbers()
    read_to = event_feed.newest_numbers([team.id])[team.id]
    with another_connection() as first, another_connection() as second:
        first.execute(ADD, [late.id, team.id, 2])  # draws the lower id, and is still open
        second.execute(ADD, [early.id, team.id, 2])
        second.commit()
        event_feed.assign_numbers()
        seen = event_feed.events_after({team.id: read_to}, 10)
        assert [(event.job_id, event.seq) for event in seen] == [(early.id, 2)]
        read_to = seen[-1].team_seq or 0
        first.commit()
    event_feed.assign_numbers()
    missed = event_feed.events_after({team.id: read_to}, 10)
    assert [(event.job_id, event.seq) for event in missed] == [(late.id, 2)], "not skipped"
    assert missed[0].pk < seen[0].pk, "though its id is lower than one that was read before it"


@pytest.mark.django_db(transaction=True)
def test_whoever_waits_for_the_number_sees_what_was_committed_meanwhile(submit: Callable[..., Job], team: Team) -> None:
    """Two concurrent numberers: the second reads after the first has committed, so no number is assigned twice."""
    submit()
    with another_connection() as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [event_feed.LOCK])
        other.execute(event_feed.NUMBER, [10])
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '50ms'")
            with pytest.raises(Exception, match="lock timeout"):
                event_feed.assign_numbers()
            cursor.execute("SET lock_timeout = 0")
        other.commit()
    submit()
    assert event_feed.assign_numbers() == 1
    assert [seq for seq, _, _ in numbered(team)] == [1, 2]


@pytest.mark.django_db
def test_numbers_count_from_one_without_gaps_in_each_team(
    submit: Callable[..., Job], team: Team, other_team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [submit() for _ in range(3)]
    foreign = submit()
    JobEvent.objects.filter(job=foreign).update(team=other_team)
    for job in jobs:
        services.request_stop(job.id, "ada")
    monkeypatch.setattr(event_feed, "BATCH", 2)
    assert event_feed.assign_numbers() == JobEvent.objects.count() == 7
    assert event_feed.assign_numbers() == 0
    rows = numbered(team)
    assert [seq for seq, _, _ in rows] == list(range(1, 7))
    assert [seq for seq, _, _ in numbered(other_team)] == [1]
    for job in jobs:
        assert [seq for _, job_id, seq in rows if job_id == job.id] == [1, 2], "each job's own order stays"
    assert dict(EventHead.objects.values_list("team_id", "seq")) == {team.id: 6, other_team.id: 1}


@pytest.mark.django_db
def test_a_teams_feed_is_read_page_by_page(api: Api, submit: Callable[..., Job], team: Team) -> None:
    jobs = [submit().id for _ in range(5)]
    first = api.send("GET", "events?limit=3").json()
    assert [item["job_id"] for item in first["items"]] == jobs[:3]
    assert [item["team_seq"] for item in first["items"]] == [1, 2, 3]
    second = api.send("GET", f"events?after={first['next_after']}").json()
    assert [item["job_id"] for item in second["items"]] == jobs[3:]
    end = api.send("GET", f"events?after={second['next_after']}").json()
    assert end == {"items": [], "next_after": second["next_after"]}
    own = api.send("GET", f"jobs/{jobs[0]}/events").json()
    assert [(item["seq"], item["team_seq"]) for item in own["items"]] == [(1, 1)]


@pytest.mark.django_db
def test_a_user_of_two_teams_reads_both_with_one_cursor(
    user: User, team: Team, other_team: Team, submit: Callable[..., Job]
) -> None:
    user.memberships.create(team=other_team, role="viewer")
    client = Api()
    client.force_login(user)
    submit()
    moved = submit()
    JobEvent.objects.filter(job=moved).update(team=other_team)
    page = client.send("GET", "events").json()
    assert {item["job_id"] for item in page["items"]} == set(Job.objects.values_list("id", flat=True))
    submit()
    newer = client.send("GET", f"events?after={page['next_after']}").json()
    assert [item["team_seq"] for item in newer["items"]] == [2]
    assert len(client.send("GET", "events?team=blue").json()["items"]) == 1
    for wrong in ("7", "x", "team:", f"{team.id}:-1"):
        refused = client.send("GET", f"events?after={wrong}")
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_parameter"), wrong


@pytest.mark.django_db
def test_a_stream_without_a_loop_is_one_page(api: Api, submit: Callable[..., Job]) -> None:
    """Under plain WSGI: the client comes back with its Last-Event-ID."""
    job = submit()
    answer = api.send("GET", f"jobs/{job.id}/events", accept="text/event-stream")
    assert answer["Content-Type"] == "text/event-stream"
    text = b"".join(answer).decode()
    assert text.startswith("retry: 2000\n\nid: 1\ndata: {")
    again = api.send("GET", f"jobs/{job.id}/events", accept="text/event-stream", last_event_id="1")
    assert b"".join(again) == b"retry: 2000\n\n"
    refused = api.send("GET", "jobs/job_0/events", accept="text/event-stream")
    assert (refused.status_code, refused["Content-Type"]) == (404, "application/problem+json")


@pytest.mark.django_db(transaction=True)
def test_a_reader_beside_many_writers_sees_each_event_once_and_in_order(submit: Callable[..., Job], team: Team) -> None:
    """Run writers of several jobs with overlapping transactions, and other processes that assign numbers."""
    jobs = [submit() for _ in range(WRITERS)]
    written, failures = threading.Event(), []

    def write(job: Job) -> None:
        chance = random.Random(job.id)
        for _ in range(EVENTS):
            with transaction.atomic():
                locked = Job.objects.select_for_update(no_key=True).get(pk=job.pk)
                events.append(locked, "test.happened", actor="test")
                locked.save(update_fields=["event_seq"])
                with connection.cursor() as cursor:  # so that commits come in another order than the ids
                    cursor.execute("SELECT pg_sleep(%s)", [chance.random() / 200])

    def number() -> None:
        while not written.is_set():
            event_feed.assign_numbers()

    def guarded(work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - a thread's error must reach the test
            failures.append(error)
        finally:
            connection.close()

    writers = [threading.Thread(target=guarded, args=(write, job)) for job in jobs]
    numberer = threading.Thread(target=guarded, args=(number,))
    for thread in (*writers, numberer):
        thread.start()
    seen: list[JobEvent] = []
    expected = WRITERS * (EVENTS + 1)
    while len(seen) < expected and not failures:
        alive = any(thread.is_alive() for thread in writers)
        event_feed.assign_numbers()
        fresh = event_feed.events_after({team.id: seen[-1].team_seq or 0 if seen else 0}, 7)
        seen.extend(fresh)
        assert fresh or alive, "nobody writes any more, and something was skipped"
    written.set()
    for thread in (*writers, numberer):
        thread.join()
    assert failures == []
    assert [event.team_seq for event in seen] == list(range(1, expected + 1))
    for job in jobs:
        assert [event.seq for event in seen if event.job_id == job.id] == list(range(1, EVENTS + 2))
    ids = [event.pk for event in seen]
    assert ids != sorted(ids), "no commit overtook another: this test has shown nothing"
