"""Remedies of refused requests are followed: doing what one says works."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest

from athanor.accounts import services as accounts
from athanor.accounts.models import Team, User
from athanor.artifacts import deletions
from athanor.backends.fake.backend import World
from athanor.clusters.models import Cluster, Pool
from athanor.jobs.models import Job
from athanor.quotas.models import QuotaNode
from athanor.quotas.services import leaf_of
from athanor.scheduling import services as scheduling
from athanor.webhooks import services as webhooks
from tests.control_plane import drive
from tests.control_plane.answers import done, refused
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db


# People


def test_an_open_invitation_is_withdrawn_first(admin: Api, team: Team, make_user: Callable, other_team: Team) -> None:
    make_user("bo", other_team)
    path, body = f"teams/{team.id}/members", {"username": "bo", "role": "member"}
    offer = done(admin.send("POST", path, body))
    refused(admin.send("POST", path, body), "already_invited", "DELETE /invitations/{id}")
    done(admin.send("DELETE", f"invitations/{offer['id']}"))
    done(admin.send("POST", path, body))


def test_a_members_role_is_changed_instead(admin: Api, team: Team, user: User) -> None:
    path = f"teams/{team.id}/members"
    again = {"username": user.username, "role": "admin"}
    refused(admin.send("POST", path, again), "already_member", "change the role")
    assert done(admin.send("PATCH", f"{path}/{user.id}", {"role": "admin"}))["role"] == "admin"


def test_the_last_administrator_makes_another_first(admin: Api, team: Team, user: User) -> None:
    hal = User.objects.get(username="hal")
    path = f"teams/{team.id}/members"
    refused(admin.send("DELETE", f"{path}/{hal.id}"), "last_admin", "make somebody else administrator")
    done(admin.send("PATCH", f"{path}/{user.id}", {"role": "admin"}))
    done(admin.send("DELETE", f"{path}/{hal.id}"))


def test_a_taken_name_of_a_team_is_chosen_anew(operator: Api, team: Team) -> None:
    refused(operator.send("POST", "teams", {"name": team.name}), "team_exists", "another name")
    done(operator.send("POST", "teams", {"name": "green"}))


def test_unused_tokens_are_revoked(api: Api, user: User, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MAX_LIVE_TOKENS", 3)
    body = {"name": "ci", "team": team.name, "scopes": ["read"]}
    first = done(api.send("POST", "tokens", body))
    done(api.send("POST", "tokens", body))
    refused(api.send("POST", "tokens", body), "too_many_tokens", "GET /tokens", "DELETE /tokens/{id}")
    assert first["id"] in {row["id"] for row in done(api.send("GET", "tokens"))["items"]}
    done(api.send("DELETE", f"tokens/{first['id']}"))
    done(api.send("POST", "tokens", body))


def test_a_token_lives_as_long_as_the_remedy_says(api: Api, settings: Any, team: Team) -> None:
    body = {"name": "ci", "team": team.name, "scopes": ["read"]}
    refused(api.send("POST", "tokens", {**body, "expires_in_days": 3650}), "too_long", "at most")
    done(api.send("POST", "tokens", {**body, "expires_in_days": settings.ATHANOR.token_max_days}))


def test_a_scope_of_the_platform_is_left_out(user: User, team: Team) -> None:
    client = Api()
    client.force_login(user)
    body = {"name": "ci", "team": team.name}
    answer = client.send("POST", "tokens", {**body, "scopes": ["read", "platform"]})
    refused(answer, "platform_role_missing", "leave the scope out")
    done(client.send("POST", "tokens", {**body, "scopes": ["read"]}))


# Jobs


def test_a_used_key_is_replaced_by_a_new_one(api: Api, pool: Pool, spec: dict[str, Any]) -> None:
    done(api.send("POST", "jobs", spec, idempotency_key="one"))
    other = {**spec, "name": "other"}
    refused(api.send("POST", "jobs", other, idempotency_key="one"), "idempotency_key_reused", "new key")
    done(api.send("POST", "jobs", other, idempotency_key="two"))


def test_a_job_that_changed_is_read_again(api: Api, submit: Callable[..., Job]) -> None:
    path = f"jobs/{submit().id}"
    tag = api.send("GET", path)["ETag"]
    done(api.send("POST", f"{path}:pause"))
    stale = api.send("POST", f"{path}:resume", if_match=tag)
    assert stale.status_code == 412
    refused(stale, stale.json()["code"], "read it again")
    done(api.send("POST", f"{path}:resume", if_match=api.send("GET", path)["ETag"]))


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_a_job_that_ends_is_forked(api: Api, submit: Callable[..., Job], action: str) -> None:
    path = f"jobs/{submit().id}"
    done(api.send("POST", f"{path}:cancel"))
    refused(api.send("POST", f"{path}:{action}"), "job_is_ending", "fork it")
    assert done(api.send("POST", f"{path}:fork", {}))["status"] == "queued"


def test_a_job_that_has_not_ended_is_forked_or_cancelled(api: Api, submit: Callable[..., Job]) -> None:
    path = f"jobs/{submit().id}"
    refused(api.send("POST", f"{path}:retry"), "job_not_final", "cancel it", "fork it")
    done(api.send("POST", f"{path}:fork", {}))
    done(api.send("POST", f"{path}:cancel"))
    scheduling.admit()
    done(api.send("POST", f"{path}:retry"))


def test_a_full_queue_has_room_when_a_job_is_cancelled(api: Api, pool: Pool, team: Team, spec: dict[str, Any]) -> None:
    QuotaNode.objects.filter(pk=leaf_of(team).pk).update(max_queued_jobs=1)
    first = done(api.send("POST", "jobs", spec))
    refused(api.send("POST", "jobs", spec), "queue_full", "cancel one")
    done(api.send("POST", f"jobs/{first['id']}:cancel"))
    scheduling.admit()
    done(api.send("POST", "jobs", spec))


def test_a_full_queue_has_room_when_a_job_has_started(
    api: Api, world: World, pool: Pool, team: Team, spec: dict[str, Any]
) -> None:
    QuotaNode.objects.filter(pk=leaf_of(team).pk).update(max_queued_jobs=1)
    first = done(api.send("POST", "jobs", spec))
    refused(api.send("POST", "jobs", spec), "queue_full", "when one of them has started")
    drive.run(Job.objects.get(pk=first["id"]))
    done(api.send("POST", "jobs", spec))


# Projects and teams


def test_an_archived_project_is_taken_out_of_the_archive(api: Api, pool: Pool, spec: dict[str, Any]) -> None:
    project = done(api.send("POST", "projects", {"name": "old"}))
    done(api.send("PATCH", f"projects/{project['id']}", {"archived": True}))
    refused(api.send("POST", "jobs", {**spec, "project": "old"}), "invalid_spec", "out of the archive", "another")
    done(api.send("POST", "jobs", {**spec, "project": "new"}))
    done(api.send("PATCH", f"projects/{project['id']}", {"archived": False}))
    done(api.send("POST", "jobs", {**spec, "project": "old"}))


def test_the_project_that_took_the_name_is_deleted_before_the_old_one_returns(admin: Api) -> None:
    old = done(admin.send("POST", "projects", {"name": "lab"}))
    deletion = done(admin.send("DELETE", f"projects/{old['id']}"))
    new = done(admin.send("POST", "projects", {"name": "lab"}))
    restore = f"deletions/{deletion['id']}:restore"
    refused(admin.send("POST", restore), "project_exists", "delete that one first")
    done(admin.send("DELETE", f"projects/{new['id']}"))
    done(admin.send("POST", restore))
    assert [row["id"] for row in done(admin.send("GET", "projects"))["items"]] == [old["id"]]


def test_a_teams_unfinished_jobs_are_cancelled_before_it_is_deleted(
    operator: Api, api: Api, submit: Callable[..., Job], team: Team
) -> None:
    job = submit()
    refused(operator.send("DELETE", f"teams/{team.id}"), "still_needed", "cancel them")
    done(api.send("POST", f"jobs/{job.id}:cancel"))
    scheduling.admit()
    done(operator.send("DELETE", f"teams/{team.id}"))


# Webhooks


def test_a_webhook_that_is_off_is_switched_on(admin: Api, settings: Any) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"webhook_allow": "127.0.0.1"})
    made = done(admin.send("POST", "webhooks", {"url": "http://127.0.0.1:9/", "name": "ci"}))
    path = f"webhooks/{made['id']}"
    done(admin.send("PATCH", path, {"enabled": False}))
    off = admin.send("POST", f"{path}:test")
    refused(off, off.json()["code"], "enabled: true")
    done(admin.send("PATCH", path, {"enabled": True}))
    done(admin.send("POST", f"{path}:test"))


def test_one_webhook_too_many_replaces_another(admin: Api, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"webhook_allow": "127.0.0.1"})
    monkeypatch.setattr(webhooks, "MAX_WEBHOOKS_PER_TEAM", 1)
    body = {"url": "http://127.0.0.1:9/", "name": "ci"}
    made = done(admin.send("POST", "webhooks", body))
    refused(admin.send("POST", "webhooks", body), "too_many_webhooks", "delete one")
    done(admin.send("DELETE", f"webhooks/{made['id']}"))
    done(admin.send("POST", "webhooks", body))


# Clusters, quotas and budgets


def test_a_cluster_with_jobs_is_disabled_instead(
    operator: Api, api: Api, submit: Callable[..., Job], spec: dict[str, Any]
) -> None:
    submit()
    cluster = Cluster.objects.get(name="fake")
    refused(operator.send("DELETE", f"clusters/{cluster.id}"), "cluster_in_use", "disable it")
    done(operator.send("PATCH", f"clusters/{cluster.id}", {"enabled": False}))
    refused(api.send("POST", "jobs", spec), "invalid_spec")
    assert scheduling.admit() == 0


def test_a_pool_with_jobs_gets_no_nodes_instead(operator: Api, submit: Callable[..., Job], pool: Pool) -> None:
    submit()
    path = f"clusters/{pool.cluster_id}/pools/{pool.name}"
    refused(operator.send("DELETE", path), "pool_in_use", "nodes to 0")
    assert done(operator.send("PUT", path, {"nodes": 0}))["nodes"] == 0
    assert scheduling.admit() == 0  # found by following the remedy: the job was admitted, as one that holds no slot
    assert Job.objects.get().reason == "waiting_for_capacity"


def test_a_job_over_a_limit_fits_with_other_fields_or_a_higher_limit(
    api: Api, pool: Pool, team: Team, spec: dict[str, Any]
) -> None:
    leaf = leaf_of(team)
    QuotaNode.objects.filter(pk=leaf.pk).update(max_slots_per_job=1)
    large = {**spec, "resources": {**spec["resources"], "processes_per_node": 2}}
    refused(api.send("POST", "jobs", large), "over_limit", "fields listed in errors", "higher limit")
    done(api.send("POST", "jobs", spec))
    QuotaNode.objects.filter(pk=leaf.pk).update(max_slots_per_job=2)
    done(api.send("POST", "jobs", large))


def test_a_group_with_a_budget_stays_and_its_budget_is_switched_off(operator: Api, pool: Pool) -> None:
    """Found by following the earlier remedy, "delete that first": a budget cannot be deleted."""
    done(operator.send("PATCH", "quotas", {"changes": [{"action": "create", "node": "lab"}]}))
    group = QuotaNode.objects.get(name="lab")
    body = {"name": "b", "unit": "slot_hours", "period": "month", "amount": 10, "node_id": group.id, "hard": True}
    budget = done(operator.send("POST", "budgets", body))
    deletion = {"changes": [{"action": "delete", "node": "lab"}]}
    refused(operator.send("PATCH", "quotas", deletion), "group_in_use", "leave the group", "switch it off")
    done(operator.send("PATCH", f"budgets/{budget['id']}", {"active": False}))


# What is stored


def upload(api: Api, text: bytes, name: str = "corpus") -> Any:
    return api.generic("POST", f"/api/v1/datasets?name={name}&format=text", text, content_type="text/plain")


def test_space_is_made_by_a_permanent_deletion(bucket: str, admin: Api, team: Team) -> None:
    QuotaNode.objects.filter(pk=leaf_of(team).pk).update(max_storage_bytes=1000)
    first = done(upload(admin, b"a" * 800, "one"))
    refused(upload(admin, b"b" * 800, "two"), "storage_full", "--permanently before the undo window ends")
    done(admin.send("DELETE", f"datasets/{first['id']}?permanently=true"))
    deletions.purge_due()
    done(upload(admin, b"b" * 800, "two"))


def test_a_data_set_that_jobs_need_is_deleted_after_their_end(
    bucket: str, admin: Api, pool: Pool, spec: dict[str, Any]
) -> None:
    dataset = done(upload(admin, b"a text\n" * 100))
    training = {**spec["training"], "data": {"source": "dataset:corpus"}}
    job = done(admin.send("POST", "jobs", {**spec, "training": training}))
    refused(admin.send("DELETE", f"datasets/{dataset['id']}"), "still_needed", "cancel them")
    done(admin.send("POST", f"jobs/{job['id']}:cancel"))
    scheduling.admit()
    done(admin.send("DELETE", f"datasets/{dataset['id']}"))


def test_a_deleted_team_whose_name_is_wanted_is_restored(operator: Api, team: Team) -> None:
    done(operator.send("DELETE", f"teams/{team.id}"))
    refused(operator.send("POST", "teams", {"name": team.name}), "team_exists", "restore it", "another name")
    (deletion,) = done(operator.send("GET", "deletions"))["items"]
    done(operator.send("POST", f"deletions/{deletion['id']}:restore"))
    done(operator.send("GET", f"teams/{team.id}"))


# More of people, jobs and clusters


def test_a_second_service_account_gets_another_name(admin: Api, team: Team) -> None:
    path = f"teams/{team.id}/service-accounts"
    done(admin.send("POST", path, {"name": "ci", "role": "member"}))
    refused(admin.send("POST", path, {"name": "ci", "role": "member"}), "service_account_exists", "another name")
    done(admin.send("POST", path, {"name": "cd", "role": "member"}))


def test_a_job_that_only_prepares_is_not_profiled_but_a_run_is(
    api: Api, world: World, submit: Callable[..., Job], pool: Pool, spec: dict[str, Any]
) -> None:
    preparing = {name: value for name, value in spec.items() if name != "training"}
    preparing["prepare"] = {"data": {"source": "builtin:python-stdlib"}}
    job = done(api.send("POST", "jobs", preparing))
    refused(api.send("POST", f"jobs/{job['id']}:profile", {}), "nothing_to_profile", "profile a run")
    run = submit()
    refused(api.send("POST", f"jobs/{run.id}:profile", {}), "job_not_running", "while it is running")
    drive.run(run)
    done(api.send("POST", f"jobs/{run.id}:profile", {}))


def test_a_spec_that_is_not_utf8_is_saved_as_it(api: Api, pool: Pool, spec: dict[str, Any]) -> None:
    text = json.dumps({**spec, "labels": {"place": "Zürich"}}, ensure_ascii=False)
    post = partial(api.generic, "POST", "/api/v1/jobs", content_type="application/yaml")
    latin = post(text.encode("latin-1"))
    assert latin.status_code in (400, 422)
    assert "UTF-8" in latin.json()["detail"] + latin.json()["remedy"]
    assert post(text.encode()).status_code != 400


def test_a_time_without_a_period_is_one_before_the_budget(operator: Api, team: Team) -> None:
    body = {"name": "b", "unit": "slot_hours", "period": "month", "amount": 10, "node_id": leaf_of(team).id}
    budget = done(operator.send("POST", "budgets", body))
    path = f"budgets/{budget['id']}/statement"
    refused(operator.send("GET", f"{path}?at=2001-01-01T00:00:00Z"), "invalid_parameter", "since it was made")
    done(operator.send("GET", f"{path}?at={quote(budget['created_at'])}"))
