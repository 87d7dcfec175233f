"""What is rendered: exact objects, valid by the published schemas, and nothing of a user's words where it could act."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from athanor.backends.base import BackendRejected
from athanor.backends.kubernetes import names, namespaces, objects
from athanor.backends.kubernetes.backend import KubernetesBackend
from athanor.backends.kubernetes.config import KubernetesConfig
from athanor.backends.plan import LaunchPlan
from tests.kubernetes.double import validation
from tests.kubernetes.double.admission import violations
from tests.kubernetes.double.jobs import matching_rule
from tests.kubernetes.double.schema import Schemas
from tests.kubernetes.double.store import KINDS
from trainer.contract.run import EXIT_STATUS

GOLDEN = Path(__file__).parent / "golden"
REWRITE = "ATHANOR_TEST_REWRITE_GOLDEN"
BY_KIND = {kind.kind: kind for kind in KINDS.values()}
HOSTILE = "x'; kill 0; $(kill 0) `id` {{ }} \"\n---\nkind: Pod\u202e" + "\u00e9" * 200
SIMPLE: dict[str, Any] = {"image": "registry.example/athanor:1.0"}
RICH: dict[str, Any] = {
    "image": "registry.example/athanor:1.0",
    "images": {"amd": "registry.example/athanor:1.0-rocm"},
    "image_pull_policy": "Always",
    "image_pull_secrets": ["registry"],
    "namespace_prefix": "train",
    "cpus_per_process": 8,
    "memory_bytes_per_process": 64 * 2**30,
    "pools": {
        "h100": {
            "node_selector": {"node.example/pool": "h100"},
            "tolerations": [{"key": "spot", "value": "yes", "operator": "Equal", "effect": "NoSchedule"}],
            "spot": True,
            "runtime_class": "nvidia",
        }
    },
    "topology_labels": ["topology.kubernetes.io/zone", "node.example/leaf"],
    "priority_classes": {"high": "training-high"},
    "labels": {"cost-centre": "42"},
    "cache": {"claim": "prepared-data"},
    "egress": [{"cidr": "10.1.0.0/16", "ports": [443, 9000]}],
    "quota": {"requests.nvidia.com/gpu": "64", "pods": "100"},
    "queues": {"research": "research-queue"},
    "profile": {"cache_directory": "/cache", "interfaces": "eth0"},
}
FABRIC: dict[str, Any] = {
    **SIMPLE,
    "work_bytes": 200 * 2**30,
    "pools": {
        "h100": {
            "scheduler": "gang-scheduler",
            "resources": {"rdma/hca": "8", "hugepages-2Mi": "2Gi"},
            "resource_claims": {"fabric": "imex-channel"},
            "annotations": {"k8s.v1.cni.cncf.io/networks": "rail-0,rail-1"},
        }
    },
    "security": {"run_as_user": None, "run_as_group": None},
    "name_services": [{"namespace": "openshift-dns", "ports": [5353]}, {"cidr": "169.254.20.10/32"}],
    "queue": "training",
    "queue_priorities": {"high": "urgent"},
}


def plan(**changes: Any) -> LaunchPlan:
    facts: dict[str, Any] = {
        "attempt_id": "att_01j0000000000000000000000a",
        "backend_name": "athanor-01j0000000000000000000000a",
        "nodes": 1,
        "processes_per_node": 2,
        "accelerator": "cpu",
        "time_limit_seconds": 3600,
        "environment": {"ATHANOR_AGENT_URL": "https://athanor.example/api/agent/v1"},
        "secrets": {"ATHANOR_ATTEMPT_TOKEN": "planted-secret"},
        "job_id": "job_01J00000000000000000000000",
        "job_name": "Tiny",
        "team": "research",
        "project": "default",
        "pool": "cpu",
    }
    return LaunchPlan(**{**facts, **changes})


PLANS: dict[str, tuple[dict[str, Any], LaunchPlan]] = {
    "one_node": (SIMPLE, plan()),
    "two_nodes_and_a_spare": (SIMPLE, plan(nodes=2, spare_nodes=1, memory_bytes_per_node=2**30)),
    "accelerators": (
        RICH,
        plan(
            nodes=4, processes_per_node=8, accelerator="nvidia", pool="h100", priority="high", exclusive=True,
            max_switches=1, avoid_nodes=("node-7", "node-3"),
        ),
    ),
    "fabric": (
        FABRIC,
        plan(
            nodes=2, processes_per_node=8, accelerator="nvidia", pool="h100", priority="high",
            memory_share_bytes=2**40,
        ),
    ),
    "queued_anywhere": (RICH, plan(nodes=2, accelerator="amd", team="vision", pool="elsewhere")),
}  # fmt: skip


def rendered(config: dict[str, Any], of: LaunchPlan) -> list[dict[str, Any]]:
    payload: Any = KubernetesBackend(**config).render(of).payload
    found: list[dict[str, Any]] = payload["objects"]
    return found


@pytest.mark.parametrize("name", PLANS)
def test_the_objects_of_a_plan_are_exactly_these(name: str) -> None:
    text = json.dumps(rendered(*PLANS[name]), indent=1, sort_keys=True) + "\n"
    file = GOLDEN / f"{name}.json"
    if os.environ.get(REWRITE) == "1":
        file.write_text(text)
    assert text == file.read_text(), f"if it is meant to be so: {REWRITE}=1 and look at the difference"


@pytest.mark.parametrize("name", PLANS)
def test_every_object_is_valid_by_the_schemas_of_kubernetes(name: str) -> None:
    schemas = Schemas.found()
    if schemas is None:
        pytest.skip("there is no copy of Kubernetes' OpenAPI documents (ATHANOR_TEST_KUBERNETES_OPENAPI)")
    config, of = PLANS[name]
    made = [*rendered(config, of), objects.secret(KubernetesConfig(**config), "a", "b", dict(of.secrets))]
    made += [manifest for _, _, manifest in namespaces.objects_of(KubernetesConfig(**config), of.team)]
    for manifest in made:
        kind = BY_KIND[manifest["kind"]]
        assert schemas.problems(kind, manifest) == []
        validation.check(kind.plural, manifest)


def test_the_schemas_refuse_what_is_unknown_or_of_a_wrong_type() -> None:
    schemas = Schemas.found()
    if schemas is None:
        pytest.skip("there is no copy of Kubernetes' OpenAPI documents (ATHANOR_TEST_KUBERNETES_OPENAPI)")
    (job,) = rendered(*PLANS["one_node"])
    job["spec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = "Always"
    job["spec"]["completions"] = "two"
    assert sorted(schemas.problems(KINDS["jobs"], job)) == [
        ".spec.completions: 'two' is not of type integer",
        'unknown field ".spec.template.spec.containers[0].imagePullPolcy"',
    ]


@pytest.mark.parametrize("name", PLANS)
def test_pods_keep_to_the_level_restricted_and_show_no_secret(name: str) -> None:
    config, of = PLANS[name]
    spec = rendered(config, of)[0]["spec"]["template"]["spec"]
    assert violations(spec) == []
    assert spec["automountServiceAccountToken"] is False
    assert "planted-secret" not in KubernetesBackend(**config).render(of).text


def test_the_check_of_the_level_restricted_can_fail() -> None:
    spec = rendered(*PLANS["one_node"])[0]["spec"]["template"]["spec"]
    spec["containers"][0]["securityContext"]["capabilities"] = {"add": ["SYS_ADMIN"]}
    spec["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    assert violations(spec) == ["restricted volume types (hostPath)", "unrestricted capabilities"]


def test_a_pool_of_a_privileged_cluster_may_use_the_network_of_nodes_and_lock_memory() -> None:
    config = {
        **SIMPLE,
        "security": {"level": "privileged"},
        "pools": {"h100": {"host_network": True, "lock_memory": True}},
    }
    spec = rendered(config, plan(pool="h100"))[0]["spec"]["template"]["spec"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    other = rendered(config, plan(pool="cpu"))[0]["spec"]["template"]["spec"]
    assert "hostNetwork" not in other
    assert other["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("config", "changes", "memory"),
    [
        ({}, {}, None),
        ({}, {"memory_share_bytes": 1000}, "900"),
        ({"memory_bytes_per_process": 700}, {"memory_share_bytes": 1000}, "1400"),
        ({"memory_bytes_per_process": 700}, {"memory_share_bytes": 1000, "memory_bytes_per_node": 5000}, "5000"),
    ],
)
def test_memory_is_that_of_the_job_or_the_cluster_or_a_share_of_the_pools(
    config: dict[str, Any], changes: dict[str, Any], memory: str | None
) -> None:
    spec = rendered({**SIMPLE, **config}, plan(**changes))[0]["spec"]["template"]["spec"]
    resources = spec["containers"][0]["resources"]
    assert resources["requests"].get("memory") == resources.get("limits", {}).get("memory") == memory


def test_hostile_names_are_annotations_and_digests_alone() -> None:
    config = KubernetesConfig(**SIMPLE)
    hostile = plan(job_name=HOSTILE, team=HOSTILE, project=HOSTILE, pool=HOSTILE, nodes=2)
    for manifest in rendered(SIMPLE, hostile):
        validation.check(BY_KIND[manifest["kind"]].plural, manifest)
    for _, plural, manifest in namespaces.objects_of(config, HOSTILE):
        validation.check(plural, manifest)
    text = json.dumps(
        [{**one, "metadata": {**one["metadata"], "annotations": {}}} for one in rendered(SIMPLE, hostile)]
    )
    assert "kill 0" not in text


def test_two_teams_never_share_a_namespace() -> None:
    config = KubernetesConfig(**SIMPLE)
    alike = ["Research", "research", "re-search", "re search", "", "\u00e9", "\u00e8", "x" * 80, "x" * 81]
    found = {names.namespace_of(config, team) for team in alike}
    assert len(found) == len(alike)
    assert all(len(name) <= 63 for name in found)


def test_a_teams_network_is_closed_but_for_names_and_the_platform() -> None:
    config = KubernetesConfig(**RICH)
    (policy,) = [one for _, plural, one in namespaces.objects_of(config, "research") if plural == "networkpolicies"]
    spec = policy["spec"]
    assert spec["podSelector"] == {}
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in spec
    assert [rule["to"] for rule in spec["egress"]] == [
        [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}],
        [{"ipBlock": {"cidr": "10.1.0.0/16"}}],
    ]
    assert [port["port"] for port in spec["egress"][1]["ports"]] == [443, 9000]


def test_pods_of_one_attempt_reach_each_other_and_no_other_attempts() -> None:
    (policy,) = [one for one in rendered(SIMPLE, plan(nodes=2)) if one["kind"] == "NetworkPolicy"]
    mine = {"podSelector": {"matchLabels": {names.ATTEMPT: plan().backend_name}}}
    assert policy["spec"]["podSelector"] == mine["podSelector"]
    assert policy["spec"]["ingress"] == [{"from": [mine]}]
    assert policy["spec"]["egress"] == [{"to": [mine]}]


def test_pods_are_replaced_only_in_a_run_that_may_lose_nodes() -> None:
    alone, spared = (rendered(SIMPLE, plan(nodes=2, spare_nodes=spares))[0]["spec"] for spares in (0, 1))
    assert (alone["backoffLimit"], alone["completions"], alone["parallelism"]) == (0, 2, 2)
    assert alone["podFailurePolicy"]["rules"][0]["action"] == "FailJob"
    assert "backoffLimit" not in spared
    assert (spared["backoffLimitPerIndex"], spared["maxFailedIndexes"], spared["completions"]) == (3, 1, 3)
    shrinking = rendered(SIMPLE, plan(nodes=4, spare_nodes=1, min_nodes=2))[0]["spec"]
    assert (shrinking["maxFailedIndexes"], shrinking["completions"]) == (3, 5)
    assert alone["podReplacementPolicy"] == spared["podReplacementPolicy"] == "Failed"


@pytest.mark.parametrize(
    ("code", "is_disrupted", "action"),
    [
        (137, False, "Count"),  # killed
        (139, False, "Count"),  # a segmentation fault of the agent
        (137, True, "Count"),  # evicted, and killed because it did not end in time
        (64, True, "FailIndex"),  # evicted: it saved a checkpoint and ended the attempt
        *((status, False, "FailIndex") for status in EXIT_STATUS.values() if status),
        (128, False, "FailIndex"),  # it could not be started
        (255, False, "FailIndex"),
    ],
)
def test_a_pod_whose_agent_ended_by_itself_is_not_replaced(code: int, is_disrupted: bool, action: str) -> None:
    (job, *_) = rendered(SIMPLE, plan(nodes=2, spare_nodes=1))
    conditions = [{"type": "DisruptionTarget", "status": "True"}] if is_disrupted else []
    states = [{"name": "agent", "state": {"terminated": {"exitCode": code}}}]
    rule = matching_rule(job, {"status": {"conditions": conditions, "containerStatuses": states}})
    assert (rule[1]["action"] if rule else "Count") == action


def test_an_accelerator_that_the_cluster_does_not_have_is_rejected() -> None:
    with pytest.raises(BackendRejected, match="no accelerator 'tpu'"):
        KubernetesBackend(**SIMPLE).render(plan(accelerator="tpu"))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"context": "production"}, "kubeconfig_file"),
        ({"cache": {"claim": "a", "host_path": "/b"}}, "claim or host_path"),
        ({"cache": {"claim": "a"}}, "cache_directory"),
        ({"cache": {"host_path": "/b"}, "profile": {"cache_directory": "/b"}}, "no host paths"),
        ({"security": {"run_as_user": 0}}, "restricted"),
        ({"namespace_prefix": "Not A Label"}, "namespace_prefix"),
        ({"egress": [{"cidr": "10.0.0.0/8; rm"}]}, "cidr"),
        ({"pools": {"a": {"host_network": True}}}, "host_network"),
        ({"pools": {"a": {"lock_memory": True}}, "security": {"level": "baseline"}}, "security.level to privileged"),
        ({"pools": {"a": {"resources": {"rdma/hca": "all"}}}}, "resources"),
        ({"name_services": [{"ports": [53]}]}, "namespace or cidr"),
        ({"name_services": [{"namespace": "a", "cidr": "10.0.0.1/32"}]}, "not both"),
        ({"timeout_seconds": 20}, "timeout_seconds"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        KubernetesBackend(**{**SIMPLE, **changes})
