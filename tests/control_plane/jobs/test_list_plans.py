"""Lists of jobs use an index for every filter and page, with row-level security enabled."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from athanor.accounts.models import Membership, Team, User
from athanor.accounts.selectors import principal_of
from athanor.core import tenancy
from athanor.jobs import selectors
from athanor.jobs.models import Job
from tests import many_jobs
from tests.control_plane import drive
from tests.control_plane.conftest import Api

COUNT = 20_000
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def many(submit: Callable[..., Job], user: User, team: Team) -> Iterator[None]:
    many_jobs.fill(drive.start(submit()), COUNT)
    many_jobs.settle()
    tenancy.restrict([team.id])
    yield
    with connection.cursor() as cursor:
        cursor.execute("RESET athanor.teams")


FILTERS: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({}, "jobs_of_a_team"),
    "team": ({"team": "red"}, "jobs_of_a_team"),
    "a rare status": ({"statuses": ["running"]}, "jobs_by_status"),
    "a common status": ({"statuses": ["succeeded"]}, "jobs_"),
    "several statuses": ({"statuses": ["queued", "running"]}, "jobs_"),
    "project": ({"project": "project-7"}, "jobs_by_project"),
    "no such project": ({"project": "none"}, "jobs_by_project"),
    "a rare label": ({"labels": {"sweep": "123"}}, "jobs_by_label"),
    "a common label": ({"labels": {"env": "prod"}}, "jobs_by_label"),
    "a part of most names": ({"query": "llama"}, "jobs_of_a_team"),
    "a rare part of a name": ({"query": "996-lr3"}, "unnest"),
    "no such name": ({"query": "zzz"}, "unnest"),
    "a short part of no name": ({"query": "zz"}, "jobs_of_a_team"),
    "a person": ({"created_by": "ada"}, "jobs_"),
    "lately": ({"created_after": timedelta(minutes=30)}, "jobs_"),
}


INDEX_ALONE = {"none", "team", "a part of most names", "a short part of no name", "no such project"}


def plan_of(user: User, asked: dict[str, Any], before: str) -> str:
    found = {"statuses": [], "labels": {}, **asked}
    if "created_after" in found:
        found["created_after"] = timezone.now() - found["created_after"]
    jobs = selectors.filtered(principal_of(user), **found)
    if before:
        jobs = jobs.filter(pk__lt=before)
    return jobs.order_by("-pk").values_list("pk", flat=True)[:51].explain(analyze=True)


def test_no_list_reads_the_table_from_end_to_end(many: None, user: User) -> None:
    deep = Job.objects.order_by("-pk").values_list("pk", flat=True)[15_000]
    for name, (asked, index) in FILTERS.items():
        for before in ("", deep):
            plan = plan_of(user, asked, before)
            assert "Seq Scan on jobs_" not in plan, (name, before, plan)
            assert before or index in plan, (name, plan)
            if name in INDEX_ALONE:
                assert "Index Only Scan" in plan, (name, before, plan)


def test_a_page_takes_few_statements_and_none_grows_with_it(many: None, api: Api) -> None:
    api.send("GET", "jobs?limit=1")  # writes down that its token was used
    counts = []
    for limit in (5, 100):
        with CaptureQueriesContext(connection) as seen:
            answer = api.send("GET", f"jobs?limit={limit}&project=project-7&label.env=dev")
        assert len(answer.json()["items"]) == limit
        counts.append(len(seen))
    assert counts[0] == counts[1] < 12


def test_filters_find_the_same_jobs_as_before(many: None, api: Api, user: User, other_team: Team) -> None:
    Membership.objects.create(user=user, team=other_team)
    for query, found in {
        "q=llama-996-lr0": 3, "q=ama-996-LR0": 3, "label.sweep=123": 40, "label.sweep=123&label.env=prod": 0,
        "status=running": 4, "project=project-7&status=queued": 0, "team=blue": 0, "team=none": 0,
    }.items():  # fmt: skip
        items = api.send("GET", f"jobs?limit=200&{query}").json()["items"]
        assert len(items) == found, query
    newest = Job.objects.order_by("-created_at").values_list("created_at", flat=True)[0]
    since = (newest - timedelta(seconds=100)).isoformat().replace("+00:00", "Z")
    recent = api.send("GET", f"jobs?limit=200&created_after={since}").json()["items"]
    assert 90 <= len(recent) <= 102
    assert [item["id"] for item in recent] == sorted((item["id"] for item in recent), reverse=True)
    assert len(api.send("GET", "jobs?limit=200&created_after=0001-01-01T00:00:00Z").json()["items"]) == 200
