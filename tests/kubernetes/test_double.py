"""That the stand-in behaves as the API does, where the backend's tests depend on it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local.handle import wait_until
from tests.kubernetes.double.cluster import Cluster, running_cluster
from tests.kubernetes.double.jobs import indexes, written
from tests.kubernetes.double.loop import Loop
from tests.kubernetes.test_objects import SIMPLE, plan, rendered

SPACES = "/api/v1/namespaces"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"
JOBS = "/apis/batch/v1/namespaces/default/jobs"


class Api:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.http = httpx.Client(base_url=cluster.url, headers={"Authorization": f"Bearer {cluster.token}"})

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: Any) -> Any:
        content = None if body is None else json.dumps(body)
        return self.http.request(method, path, content=content, params=query, headers={"Content-Type": kind})

    def apply(self, path: str, body: Any, manager: str, **query: Any) -> Any:
        kind = "application/apply-patch+yaml"
        return self.call("PATCH", path, body, kind, fieldManager=manager, **query)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running_cluster(tmp_path / "cluster", nodes=1) as cluster:
        yield Api(cluster)


def space(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


def test_names_are_given_once_and_versions_grow(api: Api) -> None:
    made = api.call("POST", SPACES, space("a")).json()
    again = api.call("POST", SPACES, space("a"))
    assert (again.status_code, again.json()["reason"]) == (409, "AlreadyExists")
    changed = api.call(
        "PATCH", f"{SPACES}/a", {"metadata": {"labels": {"x": "y"}}}, "application/merge-patch+json"
    ).json()
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]
    old = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "labels": {"x": "z"}}}
    stale = api.call("PATCH", f"{SPACES}/a", old, "application/merge-patch+json")
    assert (stale.status_code, stale.json()["reason"]) == (409, "Conflict")


def test_who_is_not_known_or_may_not_is_refused(api: Api) -> None:
    assert httpx.get(f"{api.cluster.url}{SPACES}").status_code == 401
    api.cluster.forbidden = {("list", "namespaces")}
    assert api.call("GET", SPACES).status_code == 403
    assert api.call("GET", f"{SPACES}/default").status_code == 200
    assert api.call("GET", f"{SPACES}/none").json()["reason"] == "NotFound"
    assert api.call("GET", "/apis/jobset.x-k8s.io/v1alpha2/jobsets").status_code == 404


def test_selectors_choose(api: Api) -> None:
    for name, labels in (("a", {"team": "x", "tier": "1"}), ("b", {"team": "y"}), ("c", {})):
        api.call("POST", SPACES, space(name, **labels))

    def found(**query: str) -> list[str]:
        return [
            one["metadata"]["name"]
            for one in api.call("GET", SPACES, **query).json()["items"]
            if len(one["metadata"]["name"]) == 1
        ]

    assert found(labelSelector="team") == ["a", "b"]
    assert found(labelSelector="team=x") == ["a"]
    assert found(labelSelector="team!=x") == ["b", "c"]
    assert found(labelSelector="team in (x,y),!tier") == ["b"]
    assert found(labelSelector="team notin (x)") == ["b", "c"]
    assert found(fieldSelector="metadata.name=c") == ["c"]
    assert api.call("GET", SPACES, fieldSelector="spec.colour=red").status_code == 400


def test_pages_are_of_one_moment_and_expire(api: Api) -> None:
    for name in "abcd":
        api.call("POST", SPACES, space(name, page="yes"))
    first = api.call("GET", SPACES, labelSelector="page=yes", limit=2).json()
    api.call("DELETE", f"{SPACES}/d")
    token = first["metadata"]["continue"]
    second = api.call("GET", SPACES, limit=2, **{"continue": token}).json()
    assert [one["metadata"]["name"] for one in second["items"]] == ["c", "d"]
    first = api.call("GET", SPACES, labelSelector="page=yes", limit=1).json()
    api.cluster.store.compact()
    expired = api.call("GET", SPACES, limit=1, **{"continue": first["metadata"]["continue"]})
    assert (expired.status_code, expired.json()["reason"]) == (410, "Expired")
    assert api.call("GET", SPACES, watch="true", resourceVersion="1").status_code == 410


def test_what_enters_and_leaves_a_selection_is_added_and_deleted(api: Api) -> None:
    version = api.call("GET", SPACES).json()["metadata"]["resourceVersion"]
    api.call("POST", SPACES, space("a", team="x"))
    for label in ("y", "x", None):
        api.call("PATCH", f"{SPACES}/a", {"metadata": {"labels": {"team": label}}}, "application/merge-patch+json")
    query = {"watch": "true", "labelSelector": "team=x", "resourceVersion": version, "timeoutSeconds": 1}
    lines = [json.loads(line) for line in api.call("GET", SPACES, **query).text.splitlines()]
    assert [line["type"] for line in lines] == ["ADDED", "DELETED", "ADDED", "DELETED"]


def test_appliers_own_fields(api: Api) -> None:
    def quota(**hard: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}

    assert api.apply(f"{QUOTAS}/q", quota(pods="1", cpu="2"), "first").status_code == 201
    refused = api.apply(f"{QUOTAS}/q", quota(pods="5"), "second")
    assert refused.status_code == 409
    assert 'conflict with "first": .spec.hard.pods' in refused.json()["message"]
    assert api.apply(f"{QUOTAS}/q", quota(pods="5", memory="1Gi"), "second", force="true").status_code == 200
    after = api.apply(f"{QUOTAS}/q", quota(), "first").json()
    assert after["spec"]["hard"] == {"pods": "5", "memory": "1Gi"}
    assert api.apply(f"{QUOTAS}/q", quota(), "").status_code == 400


def test_jobs_are_checked_and_most_of_them_never_change(api: Api) -> None:
    api.call("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "athanor"}})
    (job,) = rendered(SIMPLE, plan())
    del job["metadata"]["namespace"]
    wrong = json.loads(json.dumps(job))
    wrong["spec"]["podReplacementPolicy"] = "TerminatingOrFailed"
    wrong["metadata"]["labels"]["x"] = "not a label"
    refused = api.call("POST", JOBS, wrong)
    assert refused.status_code == 422
    assert "podReplacementPolicy" in refused.json()["message"]
    assert "not a label" in refused.json()["message"]
    made = api.call("POST", JOBS, job).json()
    assert made["metadata"]["generation"] == 1
    where = f"{JOBS}/{job['metadata']['name']}"
    merge = "application/merge-patch+json"
    assert api.call("PATCH", where, {"spec": {"completions": 3}}, merge).status_code == 422
    assert api.call("PATCH", where, {"spec": {"podFailurePolicy": None}}, merge).status_code == 422
    changed = api.call("PATCH", where, {"spec": {"activeDeadlineSeconds": 1}}, merge).json()
    assert changed["metadata"]["generation"] == 2
    wait_until(lambda: "Failed" in str(api.call("GET", where).json()["status"].get("conditions")), "its end", 20)
    assert "DeadlineExceeded" in str(api.call("GET", where).json()["status"]["conditions"])


def test_a_job_is_removed_some_time_after_its_end(api: Api) -> None:
    (job,) = rendered(SIMPLE, plan())
    del job["metadata"]["namespace"]
    job["spec"].update(activeDeadlineSeconds=1, ttlSecondsAfterFinished=0)
    api.call("POST", JOBS, job)
    where = f"{JOBS}/{job['metadata']['name']}"
    wait_until(lambda: api.call("GET", where).status_code == 404, "it is removed", 20)


@pytest.mark.parametrize(("text", "found"), [("", set()), ("0", {0}), ("0-2,5,7-8", {0, 1, 2, 5, 7, 8})])
def test_lists_of_indexes(text: str, found: set[int]) -> None:
    assert indexes(text) == found
    assert written(found) == text


def test_the_loop_is_stopped_while_it_ends_by_itself_and_is_asked_for_more_afterwards() -> None:
    loop = Loop()
    loop.start()
    loop.later(0, lambda: setattr(loop, "_is_over", True))
    loop._thread.join(10)
    loop.stop()
    loop.soon("late", lambda: None)
    loop.later(0, lambda: None)
