"""Buckets of other owners: a prefix ends at a slash, and each is granted to named teams."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from athanor.accounts.models import Role, Team, User
from athanor.artifacts import datasets, storage
from athanor.artifacts.buckets import is_granted, parse_grants
from athanor.config.env import EnvironmentProblem, read
from athanor.core.errors import Invalid
from athanor.dispatch import tokens
from athanor.dispatch.services import run_config_of
from athanor.jobs.models import Attempt, Job
from tests.control_plane import drive
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db
OBJECTS = {"public/a.txt": b"open", "public-payroll/secret.txt": b"salaries", "public.txt": b"beside"}


@pytest.fixture
def corp(settings: Any, bucket: str) -> Iterator[Callable[[str], None]]:
    """A bucket with a public folder and a sibling that only begins alike; called, it sets the grants."""
    storage.client().create_bucket(Bucket="corp")
    for key, content in OBJECTS.items():
        storage.client().put_object(Bucket="corp", Key=key, Body=content)

    def grant(text: str) -> None:
        settings.ATHANOR = settings.ATHANOR.model_copy(update={"data_buckets": text})

    grant("corp/public=red")
    yield grant
    for item in storage.listing("s3://corp"):
        storage.client().delete_object(Bucket="corp", Key=storage.split(item.key)[1])
    storage.client().delete_bucket(Bucket="corp")


def started(api: Api, spec: dict[str, Any], source: str) -> Attempt:
    spec["training"]["data"] = {"source": source}
    made = api.send("POST", "jobs", spec)
    assert made.status_code == 201, made.content
    return drive.start(Job.objects.get(pk=made.json()["id"]))


def presign(attempt: Attempt, key: str) -> Any:
    client = Api()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {tokens.issue(attempt.id)}")
    return client.post("/api/agent/v1/storage:presign", {"operation": "get", "keys": [key]}, format="json")


@pytest.mark.parametrize("source", ["s3://corp/public", "s3://corp/public/"])
def test_a_granted_prefix_does_not_leak_its_siblings(
    api: Api, spec: dict[str, Any], world: Any, corp: Any, source: str
) -> None:
    attempt = started(api, spec, source)
    listed = [part.key for file in run_config_of(attempt).dataset.raw for part in file.parts]
    assert listed == ["s3://corp/public/a.txt"]
    assert presign(attempt, "s3://corp/public/a.txt").status_code == 200
    for sibling in ("s3://corp/public-payroll/secret.txt", "s3://corp/public.txt", "s3://corp/public/../x"):
        refused = presign(attempt, sibling)
        assert (refused.status_code, refused.json()["code"]) == (403, "outside_prefix"), sibling


def test_one_object_is_a_source_too(api: Api, spec: dict[str, Any], world: Any, corp: Any) -> None:
    attempt = started(api, spec, "s3://corp/public/a.txt")
    assert [file.path for file in run_config_of(attempt).dataset.raw] == ["a.txt"]


@pytest.mark.parametrize(
    "source", ["s3://corp/public-payroll", "s3://corp", "s3://corp/public/../public-payroll", "s3://corp/public//x"]
)
def test_what_is_not_granted_is_refused_with_the_team_and_the_remedy(
    api: Api, spec: dict[str, Any], world: Any, corp: Any, source: str
) -> None:
    spec["training"]["data"] = {"source": source}
    (problem,) = api.send("POST", "jobs", spec).json()["errors"]
    assert (problem["pointer"], problem["code"]) == ("/training/data/source", "bucket_not_allowed")
    assert f"team red may not read {source} (granted to it: s3://corp/public)" in problem["detail"]
    assert "ATHANOR_DATA_BUCKETS" in problem["detail"]


def test_a_bucket_is_granted_to_named_teams(
    api_of: Callable[[User, Team], Api], make_user: Callable[..., User], other_team: Team, spec: dict[str, Any],
    world: Any, corp: Callable[[str], None],
) -> None:  # fmt: skip
    theirs = api_of(make_user("bob", other_team, Role.MEMBER), other_team)
    spec["training"]["data"] = {"source": "s3://corp/public"}
    refused = theirs.send("POST", "jobs", spec).json()["errors"][0]["detail"]
    assert "team blue may not read s3://corp/public (granted to it: none)" in refused
    assert "add corp/public=blue to ATHANOR_DATA_BUCKETS" in refused
    corp("corp/public=red,blue")  # the remedy
    assert theirs.send("POST", "jobs", spec).status_code == 201
    corp("corp/public=*")
    assert theirs.send("POST", "jobs", {**spec, "name": "again"}).status_code == 201
    spec["training"] |= {"model": {"base": "s3://corp/public-payroll/model"}}
    assert theirs.send("POST", "jobs", spec).json()["errors"][0]["code"] == "bucket_not_allowed"


def test_a_grant_that_is_withdrawn_ends_what_runs_and_what_waits(
    api: Api, spec: dict[str, Any], world: Any, corp: Callable[[str], None]
) -> None:
    attempt = started(api, spec, "s3://corp/public")
    corp("corp/public=blue")
    with pytest.raises(Invalid, match="team red may not read s3://corp/public"):
        run_config_of(attempt)
    refused = presign(attempt, "s3://corp/public/a.txt")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_spec")
    assert "team red may not read s3://corp/public/a.txt" in refused.json()["detail"]


def test_the_platforms_own_bucket_is_granted_to_nobody(team: Team, corp: Callable[[str], None]) -> None:
    corp(f"{storage.bucket()}=*")
    with pytest.raises(Invalid, match="may not read"):
        datasets.resolve(team, f"s3://{storage.bucket()}/jobs")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("corp/public", "'corp/public' names no teams that may read it"),
        ("corp/public=", "names no teams"),
        ("corp/public,corp/open", "names no teams"),
        ("corp/public=red,*", "mixes * with names of teams"),
        ("corp/public=red,corp/open=*", "'corp/open=*' in"),
        ("corp/../x=red", "is not a bucket or bucket/prefix"),
        ("=red", "is not a bucket"),
    ],
)
def test_a_setting_that_names_no_teams_is_refused_at_start(text: str, says: str) -> None:
    with pytest.raises(EnvironmentProblem) as refused:
        read({"ATHANOR_DATA_BUCKETS": text})
    assert "ATHANOR_DATA_BUCKETS" in str(refused.value)
    assert says in str(refused.value)
    assert "bucket/prefix=team,team" in str(refused.value)


def test_grants_are_read_as_they_are_documented(settings: Any) -> None:
    text = "corp/public=red,blue; s3://corp/open/=*"
    read({"ATHANOR_DATA_BUCKETS": text})
    assert [grant.root for grant in parse_grants(text)] == ["s3://corp/public", "s3://corp/open"]
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"data_buckets": text})
    assert is_granted("s3://corp/public/x", "blue") and not is_granted("s3://corp/public/x", "green")
    assert is_granted("s3://corp/open", "green") and not is_granted("s3://corp/open-not", "green")
