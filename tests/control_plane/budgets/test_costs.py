"""Costs by person and by job: their sums, their bounds, and whose they show."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.accounts.roles import Scope
from athanor.accounts.services import issue_token
from athanor.api.v1 import costs as costs_views
from athanor.budgets import meter, usage
from athanor.budgets.models import UsageHour
from athanor.clusters.models import Pool
from athanor.jobs.models import Job
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db


@pytest.fixture
def usage_of_two_teams(
    submit: Callable[..., Job], user: User, team: Team, other_team: Team, make_user: Callable[..., User], pool: Pool
) -> list[Job]:
    """Jobs of ada and lin in red and of sam in blue over two days, and usage of red that was not stored by job."""
    lin, sam = make_user("lin", team), make_user("sam", other_team)
    jobs = [submit(name=f"job-{number}", project=f"p{number % 2}") for number in range(4)]
    for job, (person, of) in zip(jobs, [(user, team), (user, team), (lin, team), (sam, other_team)], strict=True):
        Job.objects.filter(pk=job.pk).update(created_by=person, team=of)
        job.refresh_from_db()
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    counted = [
        (
            meter.where(job, hour - timedelta(hours=24 * (number % 2))),
            {"slot_seconds": 10**number, "cost": 7 * 10**number},
        )
        for number, job in enumerate(jobs)
    ]
    usage.add([*counted, (counted[0][0], {"fault_slot_seconds": 1, "fault_cost": 2, "milligrams": 3})])
    UsageHour.objects.create(team=team, project="old", pool=pool, accelerator="cpu", hour=hour, slot_seconds=5, cost=6)
    return jobs


def totals(answer: Any) -> dict[str, int]:
    """The sums of all rows of a report, the rest among them."""
    rows = [*answer.json()["items"], *answer.json()["rest"]]
    return {name: sum(row[name] for row in rows) for name in (*usage.COUNTED, "charged")}


def test_sums_by_person_and_job_are_those_by_team(
    api: Api, usage_of_two_teams: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_team = totals(api.send("GET", "costs"))
    assert by_team == {
        "slot_seconds": 116, "cost": 783, "charged": 781, "fault_slot_seconds": 1, "fault_cost": 2, "milligrams": 3,
        "saved_cost": 0, "saved_milligrams": 0,
    }  # fmt: skip
    people = api.send("GET", "costs?by=person")
    assert [(row["person"], row["cost"]) for row in people.json()["items"]] == [("lin", 700), ("ada", 77), (None, 6)]
    found = api.send("GET", "costs?by=job").json()["items"]
    of_red = [(job.id, job.name) for job in reversed(usage_of_two_teams[:3])]
    assert [(row["job"], row["job_name"]) for row in found] == [*of_red[:2], of_red[2], (None, None)]
    for by in ("person", "job", "job,day", "person,project,pool,cluster,accelerator,team", "day,job,person"):
        for limit in (500, 2, 1):
            monkeypatch.setattr(costs_views, "SHOWN", limit)
            answer = api.send("GET", f"costs?by={by}")
            assert totals(answer) == by_team, by
            rest = answer.json()["rest"]
            assert len(answer.json()["items"]) <= limit
            assert bool(rest) == (limit < 500)
            if rest:
                assert rest[0]["groups"] + limit == (3 if by == "person" else 4), by
    monkeypatch.setattr(costs_views, "EXPORTED", 1)
    heading, first, last = b"".join(api.send("GET", "costs:export?by=job")).decode().splitlines()
    assert heading.startswith("job,job_name,currency,slot_seconds,cost,")
    assert first.startswith(f"{usage_of_two_teams[2].id},job-2,USD,100,700,")
    assert last.startswith("rest,,USD,16,83,")


def test_jobs_and_people_of_other_teams_are_summed_for_who_sees_all_costs(
    api_of: Callable[..., Api], user: User, team: Team, usage_of_two_teams: list[Job]
) -> None:
    User.objects.filter(pk=user.pk).update(platform_role="auditor")
    user.refresh_from_db()
    auditor = Api()
    auditor.credentials(
        HTTP_AUTHORIZATION=f"Bearer {issue_token(user, team, 'x', scopes=[Scope.READ, Scope.PLATFORM_AUDIT])[1]}"
    )
    own = [job.id for job in usage_of_two_teams[:3]]
    by_job = auditor.send("GET", "costs?by=team,job").json()["items"]
    assert [(row["team"], row["cost"]) for row in by_job if row["job"] is None] == [("blue", 7000), ("red", 6)]
    assert sorted(row["job"] for row in by_job if row["job"]) == sorted(own)
    assert "sam" not in auditor.send("GET", "costs?by=person,team").content.decode()
    assert totals(auditor.send("GET", "costs?by=person")) == totals(auditor.send("GET", "costs"))
    only_platform = Api()
    only_platform.credentials(
        HTTP_AUTHORIZATION=f"Bearer {issue_token(user, team, 'y', scopes=[Scope.PLATFORM_AUDIT])[1]}"
    )
    for by in ("job", "person", "job,person"):
        (row,) = only_platform.send("GET", f"costs?by={by}").json()["items"]
        assert [row[name] for name in by.split(",")] == [None] * len(by.split(","))
    member = api_of(User.objects.get(username="sam"), Team.objects.get(name="blue"))
    (row,) = member.send("GET", "costs?by=job,person,team").json()["items"]
    assert (row["job"], row["person"], row["team"]) == (usage_of_two_teams[3].id, "sam", "blue")
