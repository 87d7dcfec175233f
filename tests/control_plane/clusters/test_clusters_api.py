"""/clusters: registration, health checks, nodes, pools, and who may see what."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from athanor.accounts.models import AuditEvent, Team, User
from athanor.accounts.roles import PlatformRole
from athanor.backends import registry
from athanor.backends.facts import Finding, Level, NodeFacts, NodeState
from athanor.backends.fake.backend import WORLDS, World
from athanor.clusters.models import Cluster, ClusterHealthCheck, Node, Pool
from athanor.clusters.services import quarantined_names, record_incidents
from athanor.fleet import inventory_sync
from athanor.jobs.models import Job
from tests.control_plane import drive
from tests.control_plane.answers import done, refused
from tests.control_plane.conftest import SPEC, Api

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(make_user: Callable[..., User], other_team: Team) -> Api:
    user = make_user("root", other_team)
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    client = Api()
    client.force_login(User.objects.get(pk=user.pk))
    return client


@pytest.fixture
def iron() -> Iterator[World]:
    """The world of a cluster of three nodes, two with accelerators."""
    name = uuid.uuid4().hex
    world = WORLDS.setdefault(name, World())
    for node in ("g1", "g2"):
        world.nodes[node] = NodeFacts(
            node, NodeState.READY, pools=("gpu",), accelerator="gpu:h100", slots=8, slots_used=2, cpus=96,
            memory_bytes=2**40, accelerator_memory_bytes=80 * 2**30, topology=("spine", "leaf1"),
        )  # fmt: skip
    world.nodes["c1"] = NodeFacts("c1", NodeState.READY, pools=("cpu",), slots=64, cpus=64, memory_bytes=2**38)
    world.written["name"] = name
    yield world
    del WORLDS[name]


@pytest.fixture
def path(operator: Api, iron: World) -> str:
    """Return the path of the registered cluster, whose inventory was synced."""
    body = {"name": "iron", "kind": "fake_cluster", "config": {"world": iron.written["name"]}}
    made = operator.send("POST", "clusters", body)
    assert made.status_code == 201, made.content
    inventory_sync.sync_due()
    return f"clusters/{made.json()['id']}"


def node(operator: Api, path: str, name: str) -> dict[str, Any]:
    items = operator.send("GET", f"{path}/nodes").json()["items"]
    found: dict[str, Any] = next(item for item in items if item["name"] == name)
    return found


def test_a_configuration_is_refused_field_by_field(operator: Api) -> None:
    config = {"world": "x", "colour": "red", "profile": {"fabric": "string"}, "timeout_seconds": 99}
    for where in ("clusters", "clusters:check"):
        body = {"kind": "fake_cluster", "config": config, **({"name": "x"} if where == "clusters" else {})}
        answer = operator.send("POST", where, body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_config")
        pointers = {error["pointer"] for error in answer.json()["errors"]}
        assert pointers == {"/config/colour", "/config/profile/fabric", "/config/timeout_seconds"}
    unknown = operator.send("POST", "clusters", {"name": "x", "kind": "slorm", "config": {}}).json()
    assert unknown["errors"][0]["pointer"] == "/kind"
    assert "local" in unknown["detail"]
    assert not Cluster.objects.exists()


@pytest.mark.parametrize(
    ("config", "pointers"),
    [
        ({"transport": {"kind": "ssh", "host": "-oProxyCommand=id", "user": "u"}}, {
            "/config/transport/host", "/config/transport/identity_file", "/config/transport/known_hosts_file",
        }),
        ({"transport": {"kind": "carrier"}}, {"/config/transport"}),
        ({"pools": {"a/b": {"gres": "no gres"}}, "profile": {"fabric": 1}}, {
            "/config/pools/a~1b/gres", "/config/profile/fabric",
        }),
        ({"qos_by_priority": {"high": 7}}, {"/config/qos_by_priority/high"}),
    ],
)  # fmt: skip
def test_a_pointer_leads_to_what_was_written(operator: Api, config: dict[str, Any], pointers: set[str]) -> None:
    body = {"kind": "slurm", "config": {"log_directory": "/shared", **config}}
    answer = operator.send("POST", "clusters:check", body).json()
    assert {error["pointer"] for error in answer["errors"]} == pointers


def test_every_kind_that_is_offered_tells_what_its_configuration_holds(operator: Api) -> None:
    items = operator.send("GET", "clusters:kinds").json()["items"]
    assert {"local"} <= {item["kind"] for item in items}
    assert not {"fake", "fake_cluster"} & {item["kind"] for item in items}
    for item in items:
        assert item["configuration"]["additionalProperties"] is False
        assert "profile" in item["configuration"]["properties"]
        assert item["title"] != item["kind"], "add a title to TITLES in athanor/api/v1/clusters.py"


def test_every_field_of_a_configuration_is_described_and_times_and_sizes_take_units(operator: Api) -> None:
    for item in operator.send("GET", "clusters:kinds").json()["items"]:
        schema = item["configuration"]
        parts = [schema, *(each for each in schema["$defs"].values() if "properties" in each)]
        for name, field in [pair for part in parts for pair in part["properties"].items() if pair[0] != "kind"]:
            referred = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            assert {**referred, **field}["description"].strip().endswith("."), f"{item['kind']}: {name}"
            unit = next((each["x-unit"] for each in field.get("anyOf", []) if "x-unit" in each), None)
            expected = "duration" if name.endswith("_seconds") else "size" if "bytes" in name else None
            assert unit == expected, f"{item['kind']}: {name}"


@pytest.mark.parametrize(
    ("written", "detail"),
    [
        ("soon", "must be a duration; write it like 90m, 2h or 1d 12h, or in seconds; got 'soon'"),
        ("2d", "Input should be less than or equal to 86400 (1d); got '2d'"),
    ],
)
def test_a_time_with_units_is_checked_like_the_number(operator: Api, written: str, detail: str) -> None:
    config = {"log_directory": "/shared", "grace_seconds": written}
    answer = operator.send("POST", "clusters:check", {"kind": "slurm", "config": config}).json()
    assert [(each["pointer"], each["detail"]) for each in answer["errors"]] == [("/config/grace_seconds", detail)]
    read = registry.configuration("slurm").model_validate({**config, "grace_seconds": "10m"})
    assert read.model_dump()["grace_seconds"] == 600


def test_a_dry_run_examines_and_stores_nothing(operator: Api, iron: World) -> None:
    iron.findings = [Finding("accounting", Level.WARNING, "no accounting", "set up slurmdbd")]
    body = {"kind": "fake_cluster", "config": {"world": iron.written["name"]}}
    found = operator.send("POST", "clusters:check", body).json()
    assert found["usable"]
    assert found["findings"][0] == {
        "check": "accounting", "level": "warning", "detail": "no accounting", "remedy": "set up slurmdbd",
        "runbook": "/docs/runbooks/findings/slurm-settings#accounting",
    }  # fmt: skip
    assert "platform_address" in {finding["check"] for finding in found["findings"]}
    iron.away = 1
    away = operator.send("POST", "clusters:check", body).json()
    assert not away["usable"]
    assert all(finding["remedy"] for finding in away["findings"] if finding["level"] != "ok")
    assert all(bool(finding["runbook"]) is (finding["level"] != "ok") for finding in away["findings"])
    assert operator.send("POST", "clusters:check", {"kind": "fake"}).json()["usable"] is None
    assert not Cluster.objects.exists()
    assert not ClusterHealthCheck.objects.exists()


def test_a_name_is_taken_once_and_registering_is_in_the_trail(operator: Api, path: str, iron: World) -> None:
    again = operator.send("POST", "clusters", {"name": "iron", "kind": "fake_cluster"})
    assert (again.status_code, again.json()["code"]) == (409, "cluster_exists")
    event = AuditEvent.objects.get(action="cluster.register")
    assert event.after is not None
    assert event.after["kind"] == "fake_cluster"
    assert iron.written["name"] in event.after["config"]


def test_what_everybody_sees_and_what_operators_see(operator: Api, api: Api, path: str, iron: World) -> None:
    operator.send("POST", f"{path}:probe")
    for shown in (api.send("GET", path).json(), api.send("GET", "clusters").json()["items"][0]):
        assert (shown["name"], shown["kind"], shown["usable"]) == ("iron", "fake_cluster", True)
        assert shown["nodes"] == {
            "total": 3, "ready": 3, "drained": 0, "down": 0, "unknown": 0, "quarantined": 0,
        }  # fmt: skip
        gpus = shown["capacity"][1]
        assert gpus == {"accelerator": "gpu:h100", "nodes": 2, "slots": 16, "slots_used": 4, "usable_slots": 16}
        assert iron.written["name"] not in str(shown), "the configuration is for operators"
    assert api.send("GET", path).json()["setup"] is None
    setup = operator.send("GET", path).json()["setup"]
    assert setup["config"] == {"world": iron.written["name"]}
    assert set(setup["capabilities"]) == {"probe", "nodes", "drain"}
    assert setup["probe"]["usable"]
    refused = [
        ("POST", "clusters", {"name": "x", "kind": "local"}), ("POST", "clusters:check", {"kind": "local"}),
        ("GET", "clusters:kinds", None), ("PATCH", path, {"enabled": False}), ("DELETE", path, None),
        ("POST", f"{path}:probe", None), ("POST", f"{path}:sync_teams", None), ("GET", f"{path}/probes", None),
        ("GET", f"{path}/queue", None), ("GET", f"{path}/nodes", None), ("GET", f"{path}/nodes/g1/incidents", None),
        ("PUT", f"{path}/pools/gpu", {}), ("DELETE", f"{path}/pools/gpu", None),
        *(("POST", f"{path}/nodes/g1:{act}", {"reason": "x"}) for act in ("drain", "undrain", "quarantine", "release")),
    ]  # fmt: skip
    for method, where, body in refused:
        answer = api.send(method, where, body)
        assert (answer.status_code, answer.json()["code"]) == (403, "role_missing"), (method, where)


def test_a_change_needs_the_reading_it_is_based_on(operator: Api, path: str, iron: World) -> None:
    tag = operator.send("GET", path)["ETag"]
    operator.send("POST", f"{path}:probe")
    wider = {"world": iron.written["name"], "timeout_seconds": 9}
    changed = operator.send("PATCH", path, {"config": wider}, if_match=tag)
    assert changed.status_code == 200, "a health check in between does not change the ETag"
    assert changed.json()["setup"]["config"] == wider
    stale = operator.send("PATCH", path, {"enabled": False}, if_match=tag)
    assert (stale.status_code, stale.json()["code"]) == (412, "changed")
    bad = operator.send("PATCH", path, {"config": {"timeout_seconds": -1}})
    assert bad.json()["errors"][0]["pointer"] == "/config/timeout_seconds"


def test_a_disabled_cluster_admits_nothing_new_and_ends_nothing(
    operator: Api, api: Api, submit: Callable[..., Job], world: World
) -> None:
    running = submit()
    drive.run(running)
    cluster = Cluster.objects.get(name="fake")
    assert operator.send("PATCH", f"clusters/{cluster.id}", {"enabled": False}).status_code == 200
    waiting = submit(name="later")
    drive.scheduling.admit()
    waiting.refresh_from_db()
    assert (waiting.status, waiting.reason) == ("queued", "cluster_down")
    assert waiting.reason_detail.endswith("An administrator has disabled it.")
    refused = api.send("POST", "jobs", SPEC)
    assert refused.json()["errors"][0]["code"] == "cluster_disabled"
    assert drive.status_of(running)[0] == "running"
    assert api.send("GET", "clusters").json()["items"] == []
    assert api.send("GET", f"clusters/{cluster.id}").status_code == 404
    assert operator.send("GET", "clusters").json()["items"][0]["enabled"] is False
    refused = operator.send("DELETE", f"clusters/{cluster.id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "cluster_in_use")
    refused = operator.send("DELETE", f"clusters/{cluster.id}/pools/cpu")
    assert (refused.status_code, refused.json()["code"]) == (409, "pool_in_use")


def test_health_checks_are_stored_when_they_differ(operator: Api, path: str, iron: World) -> None:
    for _ in range(3):
        assert operator.send("POST", f"{path}:probe").json()["usable"]
    iron.findings = [Finding("answer", Level.ERROR, "munge is down", "start munged")]
    assert not operator.send("POST", f"{path}:probe").json()["usable"]
    items = operator.send("GET", f"{path}/probes").json()["items"]
    assert [item["usable"] for item in items] == [False, True]
    assert items[0]["findings"][0]["remedy"] == "start munged"
    assert items[1]["seen_at"] >= items[1]["began_at"]
    first = operator.send("GET", f"{path}/probes?limit=1").json()
    rest = operator.send("GET", f"{path}/probes?limit=1&cursor={first['next_cursor']}").json()
    assert [item["id"] for item in first["items"] + rest["items"]] == [item["id"] for item in items]


def test_a_quarantined_node_is_avoided_drained_and_given_back(operator: Api, path: str, iron: World) -> None:
    cluster = Cluster.objects.get(name="iron")
    done = operator.send("POST", f"{path}/nodes/g1:quarantine", {"reason": "Xid 79"}).json()
    assert (done["state"], done["quarantined_by"], done["quarantine_reason"]) == ("drained", "root", "Xid 79")
    assert done["notice"] == ""
    assert quarantined_names(cluster) == ("g1",)
    assert iron.nodes["g1"].state is NodeState.DRAINED
    assert operator.send("GET", path).json()["capacity"][1]["usable_slots"] == 8
    assert operator.send("POST", f"{path}/nodes/g1:undrain").json()["code"] == "quarantined"
    back = operator.send("POST", f"{path}/nodes/g1:release").json()
    assert (back["state"], back["quarantined_at"]) == ("ready", None)
    assert iron.nodes["g1"].state is NodeState.READY
    assert quarantined_names(cluster) == ()
    assert operator.send("POST", f"{path}/nodes/g1:release").json()["code"] == "not_quarantined"
    incidents = operator.send("GET", f"{path}/nodes/g1/incidents").json()["items"]
    assert [(item["kind"], item["actor"]) for item in incidents] == [("released", "root"), ("quarantined", "root")]
    assert set(AuditEvent.objects.values_list("action", flat=True)) >= {"node.quarantine", "node.release"}


def test_the_last_node_is_not_put_in_quarantine_but_its_cluster_is_disabled(operator: Api, path: str) -> None:
    for name in ("c1", "g1"):
        done(operator.send("POST", f"{path}/nodes/{name}:quarantine", {"reason": "x"}))
    refused(operator.send("POST", f"{path}/nodes/g2:quarantine", {"reason": "x"}), "last_node", "disable the cluster")
    assert done(operator.send("PATCH", path, {"enabled": False}))["enabled"] is False


def test_a_node_that_its_cluster_drained_is_undrained_and_one_in_quarantine_released(operator: Api, path: str) -> None:
    done(operator.send("POST", f"{path}/nodes/g1:drain", {"reason": "x"}))
    refused(operator.send("POST", f"{path}/nodes/g1:release"), "not_quarantined", "undrain it")
    assert done(operator.send("POST", f"{path}/nodes/g1:undrain"))["state"] == "ready"
    done(operator.send("POST", f"{path}/nodes/g1:quarantine", {"reason": "x"}))
    refused(operator.send("POST", f"{path}/nodes/g1:undrain"), "quarantined", "release it")
    assert done(operator.send("POST", f"{path}/nodes/g1:release"))["state"] == "ready"


def test_a_cluster_of_a_taken_name_gets_another_or_that_one_is_changed(operator: Api, path: str, iron: World) -> None:
    body = {"name": "iron", "kind": "fake_cluster", "config": {"world": iron.written["name"]}}
    refused(operator.send("POST", "clusters", body), "cluster_exists", "another name, or change that one")
    done(operator.send("PATCH", path, {"config": body["config"]}))
    done(operator.send("POST", "clusters", {**body, "name": "steel"}))


def test_what_is_not_probed_shows_its_queue_instead(operator: Api, world: World) -> None:
    path = f"clusters/{Cluster.objects.get(name='fake').id}"
    refused(operator.send("POST", f"{path}:probe"), "cannot_probe", "see its queue and its jobs")
    done(operator.send("GET", f"{path}/queue"))


def test_a_quarantine_counts_though_the_cluster_does_not_answer_and_is_made_good_later(
    operator: Api, path: str, iron: World
) -> None:
    iron.away = 1
    done = operator.send("POST", f"{path}/nodes/g1:quarantine", {"reason": "smoke"}).json()
    assert "did not drain it" in done["notice"]
    assert done["quarantined_at"]
    assert iron.nodes["g1"].state is NodeState.READY
    inventory_sync.refresh_nodes(Cluster.objects.get(name="iron"))
    assert iron.nodes["g1"].state is NodeState.DRAINED
    assert iron.nodes["g1"].reason == "smoke"


def test_a_node_is_drained_by_the_clusters_own_means(operator: Api, path: str, iron: World) -> None:
    assert operator.send("POST", f"{path}/nodes/g2:drain", {"reason": "new cables"}).json()["state"] == "drained"
    assert iron.nodes["g2"].reason == "new cables"
    assert quarantined_names(Cluster.objects.get(name="iron")) == ()
    assert operator.send("POST", f"{path}/nodes/g2:undrain").json()["state"] == "ready"
    iron.away = 1
    assert operator.send("POST", f"{path}/nodes/g2:drain", {"reason": "x"}).status_code == 503
    assert operator.send("POST", f"{path}/nodes/g9:drain", {"reason": "x"}).status_code == 404
    assert operator.send("POST", f"{path}/nodes/g2:drain", {}).json()["errors"][0]["pointer"] == "/reason"
    del iron.nodes["g2"]
    gone = operator.send("POST", f"{path}/nodes/g2:drain", {"reason": "x"})
    assert (gone.status_code, gone.json()["code"]) == (409, "drain_refused")


def test_where_nothing_can_be_drained_or_examined_it_is_said_so(operator: Api, world: World) -> None:
    cluster = Cluster.objects.get(name="fake")
    record_incidents(cluster, ["n1"], "node_lost", job_id="job_1", attempt_id="att_1")
    path = f"clusters/{cluster.id}"
    for act, code in (
        (":probe", "cannot_probe"),
        (":sync_teams", "cannot_sync_teams"),
        ("/nodes/n1:undrain", "cannot_drain"),
    ):
        answer = operator.send("POST", f"{path}{act}")
        assert (answer.status_code, answer.json()["code"]) == (409, code)
        assert answer.json()["remedy"]
    done = operator.send("POST", f"{path}/nodes/n1:quarantine", {"reason": "lost twice"}).json()
    assert done["quarantined_at"], "new attempts avoid it all the same"


def test_nodes_that_hit_several_jobs_are_proposed_and_not_touched(operator: Api, path: str) -> None:
    cluster = Cluster.objects.get(name="iron")
    for number in range(3):
        record_incidents(cluster, ["g1"], "gpu_fault", job_id=f"job_{number}", attempt_id=f"att_{number}")
        record_incidents(cluster, ["g2"], "gpu_fault", job_id="job_0", attempt_id=f"att_{number}")
    assert operator.send("GET", path).json()["setup"]["suspects"] == ["g1"]
    assert (node(operator, path, "g1")["recent_jobs_hit"], node(operator, path, "g2")["recent_jobs_hit"]) == (3, 1)
    assert node(operator, path, "g1")["quarantined_at"] is None
    operator.send("POST", f"{path}/nodes/g1:quarantine", {"reason": "three jobs"})
    assert operator.send("GET", path).json()["setup"]["suspects"] == []
    operator.send("POST", f"{path}/nodes/g1:release")
    assert operator.send("GET", path).json()["setup"]["suspects"] == [], "what was before its release is over"


def test_nodes_are_found_by_name_and_state_page_by_page(operator: Api, path: str) -> None:
    def names(query: str) -> list[str]:
        return [item["name"] for item in operator.send("GET", f"{path}/nodes?{query}").json()["items"]]

    assert names("") == ["c1", "g1", "g2"]
    assert names("q=G") == ["g1", "g2"]
    operator.send("POST", f"{path}/nodes/g2:quarantine", {"reason": "x"})
    assert names("state=quarantined") == names("state=drained") == ["g2"]
    first = operator.send("GET", f"{path}/nodes?limit=2").json()
    assert first["next_cursor"] == "g1"
    assert names("limit=2&cursor=g1") == ["g2"]


def test_pools_are_proposed_by_the_nodes_made_changed_and_removed(operator: Api, path: str) -> None:
    proposed = operator.send("GET", path).json()["setup"]["proposed_pools"]
    assert [(pool["name"], pool["accelerator"], pool["nodes"], pool["slots_per_node"]) for pool in proposed] == [
        ("cpu", "cpu", 1, 64),
        ("gpu", "gpu:h100", 2, 8),
    ]
    assert [pool["accelerator_memory_bytes"] for pool in proposed] == [None, 80 * 2**30]
    missing = operator.send("PUT", f"{path}/pools/gpu", {"nodes": 2})
    assert {error["pointer"] for error in missing.json()["errors"]} == {"/slots_per_node", "/memory_bytes"}
    body = {key: value for key, value in proposed[1].items() if key != "name"}
    assert operator.send("PUT", f"{path}/pools/gpu", body).status_code == 201
    assert [pool["name"] for pool in operator.send("GET", path).json()["setup"]["proposed_pools"]] == ["cpu"]
    changed = operator.send("PUT", f"{path}/pools/gpu", {"price_per_slot_hour": "2.5"})
    assert (changed.status_code, changed.json()["price_per_slot_hour"], changed.json()["slots"]) == (200, 2.5, 16)
    assert changed.json()["accelerator_memory_bytes"] == 80 * 2**30
    unknown = operator.send("PUT", f"{path}/pools/gpu", {"accelerator_memory_bytes": None})
    assert unknown.json()["accelerator_memory_bytes"] is None
    assert operator.send("PUT", f"{path}/pools/g.p", body).json()["errors"][0]["pointer"] == "/name"
    assert operator.send("DELETE", f"{path}/pools/gpu").status_code == 204
    assert operator.send("DELETE", f"{path}/pools/gpu").status_code == 404
    assert list(AuditEvent.objects.filter(action__startswith="pool.").values_list("action", flat=True)) == [
        "pool.create", "pool.change", "pool.change", "pool.remove",
    ]  # fmt: skip


def test_the_clusters_queue_tells_its_own_words_and_ids_alone(
    operator: Api, submit: Callable[..., Job], world: World
) -> None:
    job = submit(name="of-another-team")
    attempt = drive.run(job)
    cluster = Cluster.objects.get(name="fake")
    (item,) = operator.send("GET", f"clusters/{cluster.id}/queue").json()["items"]
    assert (item["attempt_id"], item["job_id"], item["native_state"]) == (attempt.id, job.id, "running")
    assert job.name not in str(item)
    pool = operator.send("GET", f"clusters/{cluster.id}").json()["pools"][0]
    assert (pool["slots"], pool["slots_used"]) == (8, 1)


def test_a_cluster_without_jobs_can_be_removed_with_all_that_is_known_of_it(operator: Api, path: str) -> None:
    assert operator.send("DELETE", path).status_code == 204
    assert operator.send("GET", path).status_code == 404
    assert not Node.objects.exists()
    assert AuditEvent.objects.filter(action="cluster.remove").exists()


def test_a_pool_has_spare_nodes_and_at_least_one_node_for_jobs(operator: Api, path: str) -> None:
    pool = f"{path}/pools/gpu"
    new = {"accelerator": "h100", "nodes": 3, "slots_per_node": 8, "memory_bytes": 2**40}
    assert operator.send("PUT", pool, {**new, "spare_nodes": 1}).json()["spare_nodes"] == 1
    assert operator.send("PUT", f"{path}/pools/other", new).json()["spare_nodes"] == 0
    for body, pointer, detail, remedy in (
        (
            {"spare_nodes": 3},
            "/spare_nodes",
            "spare_nodes 3 of 3 nodes",
            "spare_nodes to at most 2, or nodes to at least 4",
        ),
        ({"nodes": 1}, "/nodes", "spare_nodes 1 of 1 nodes", "spare_nodes to at most 0, or nodes to at least 2"),
        ({"nodes": 0}, "/nodes", "spare_nodes 1 of 0 nodes", "spare_nodes to at most 0, or nodes to at least 2"),
    ):
        answer = operator.send("PUT", pool, body)
        problem = answer.json()
        assert (answer.status_code, problem["errors"][0]["pointer"]) == (422, pointer)
        assert (detail in problem["detail"], remedy in problem["remedy"]) == (True, True), problem
    (found,) = [each for each in operator.send("GET", path).json()["pools"] if each["name"] == "gpu"]
    assert (found["nodes"], found["spare_nodes"], found["slots"]) == (3, 1, 24)
    assert operator.send("PUT", pool, {"nodes": 4, "spare_nodes": 3}).status_code == 200
    assert operator.send("PUT", pool, {"nodes": 0, "spare_nodes": 0}).status_code == 200
    changes = AuditEvent.objects.filter(action="pool.change").order_by("seq")
    assert [event.after["spare_nodes"] for event in changes] == [3, 0]
    with pytest.raises(IntegrityError), transaction.atomic():
        Pool.objects.filter(name="gpu").update(spare_nodes=1)


def test_a_configuration_that_no_longer_fits_is_told_and_breaks_nothing(operator: Api, path: str) -> None:
    Cluster.objects.update(config={"world": "x", "gone": 1})
    assert operator.send("GET", path).json()["setup"]["config_problems"][0]["pointer"] == "/config/gone"
    for act in (":probe", ":sync_teams", "/nodes/g1:undrain"):
        answer = operator.send("POST", f"{path}{act}")
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/config/gone"), act
    done = operator.send("POST", f"{path}/nodes/g1:quarantine", {"reason": "x"})
    assert (done.status_code, done.json()["quarantined_at"] is None) == (200, False)
    assert "/config/gone" in done.json()["notice"]


def test_no_new_attempt_is_put_on_a_quarantined_node(
    operator: Api, path: str, iron: World, submit: Callable[..., Job], world: World
) -> None:
    body = {"accelerator": "h100", "nodes": 2, "slots_per_node": 8, "memory_bytes": 2**40}
    operator.send("PUT", f"{path}/pools/gpu", body)
    resources = {"cluster": "iron", "accelerator": "h100", "nodes": 1, "processes_per_node": 1}
    pool = Pool.objects.get(name="gpu")
    chosen = []
    for name in ("c1", "g1"):
        job = submit(name=f"without-{name}", resources=resources)
        Job.objects.filter(pk=job.pk).update(pool=pool)
        attempt = drive.start(job)
        chosen.append(iron.placed[attempt.backend_name])
        operator.send("POST", f"{path}/nodes/{name}:quarantine", {"reason": "x"})
    assert chosen == [("g1",), ("g1",)]
    last = submit(name="last", resources=resources)
    Job.objects.filter(pk=last.pk).update(pool=pool)
    assert iron.placed[drive.start(last).backend_name] == ("g2",)
