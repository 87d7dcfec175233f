"""The cluster's nodes with their slots, and cordoning of nodes."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from athanor.backends.facts import NodeFacts, NodeState
from athanor.backends.kubernetes.client import KubernetesClient, path
from athanor.backends.kubernetes.config import KubernetesConfig
from athanor.backends.kubernetes.quantities import amount
from athanor.backends.kubernetes.reading import Reading

Json = dict[str, Any]
DRAINED = "athanor.dev/drained"  # annotation: why we cordoned the node
LIVING = "status.phase!=Succeeded,status.phase!=Failed"
# GPU feature discovery sets it on nodes with NVIDIA's GPUs: memory of one GPU (or MIG instance) in MiB.
GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"
# Taints that the cluster sets for a node's state, which is reported separately.
OF_STATE = "node.kubernetes.io/"


def nodes(config: KubernetesConfig, client: KubernetesClient, reading: Reading) -> list[NodeFacts]:
    """Return the nodes that our pods may run on."""
    used = _used(client, reading)
    pages = client.list(path("v1", "nodes"), deadline=reading.deadline)
    found = [item for page in pages for item in page.get("items") or []]
    return [
        facts(config, item, used.get(item["metadata"]["name"], Counter())) for item in found if may_run(config, item)
    ]


def _used(client: KubernetesClient, reading: Reading) -> dict[str, Counter[str]]:
    """Return what the live pods of all users request on each node, by resource."""
    used: dict[str, Counter[str]] = {}
    for page in client.list(path("v1", "pods"), deadline=reading.deadline, fieldSelector=LIVING):
        for pod in page.get("items") or []:
            if node := pod["spec"].get("nodeName"):
                total = used.setdefault(node, Counter())
                for container in pod["spec"].get("containers") or []:
                    resources = container.get("resources") or {}
                    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
                    total.update({name: amount(quantity) for name, quantity in asked.items()})
    return used


def facts(config: KubernetesConfig, item: Json, used: Counter[str]) -> NodeFacts:
    """Build a node from its object and what is used of it."""
    metadata, status = item["metadata"], item.get("status") or {}
    labels, has = metadata.get("labels") or {}, status.get("allocatable") or {}
    accelerator, resource = accelerator_of(config, has)
    state, reason = _state(item)
    slots = int(amount(has.get(resource, "0")))
    pools = [name for name, pool in config.pools.items() if pool.node_selector.items() <= labels.items()]
    return NodeFacts(
        name=metadata["name"],
        state=state,
        reason=reason,
        pools=tuple(pools),
        accelerator=accelerator,
        slots=slots,
        slots_used=min(slots, round(used[resource])),
        cpus=int(amount(has.get("cpu", "0"))),
        memory_bytes=int(amount(has.get("memory", "0"))),
        accelerator_memory_bytes=_accelerator_memory(labels) if accelerator != "cpu" else 0,
        topology=tuple(labels[key] for key in config.topology_labels if key in labels),
        labels=labels,
    )


def _accelerator_memory(labels: Json) -> int:
    """Return the bytes of one GPU as NVIDIA's GPU feature discovery labels them, in MiB. 0 without the label."""
    mebibytes = str(labels.get(GPU_MEMORY_LABEL, ""))
    return int(mebibytes) * 2**20 if mebibytes.isdecimal() else 0


def accelerator_of(config: KubernetesConfig, has: Json) -> tuple[str, str]:
    """Return the kind of the node's slots, and the resource that counts them."""
    for name, resource in config.accelerators.items():
        if resource is not None and amount(has.get(resource, "0")) >= 1:
            return name, resource
    return "cpu", "cpu"


def may_run(config: KubernetesConfig, item: Json) -> bool:
    """Return whether some pool tolerates all lasting taints of the node; control-plane nodes usually fail this."""
    tolerated = [one for pool in config.pools.values() for one in pool.tolerations]
    resources = {resource for resource in config.accelerators.values() if resource is not None}
    for taint in item["spec"].get("taints") or []:
        if taint["effect"] == "PreferNoSchedule" or taint["key"].startswith(OF_STATE) or taint["key"] in resources:
            continue
        if not any(
            (not one.key or one.key == taint["key"])
            and (not one.effect or one.effect == taint["effect"])
            and (one.operator == "Exists" or one.value == taint.get("value", ""))
            for one in tolerated
        ):
            return False
    return True


def _state(item: Json) -> tuple[NodeState, str]:
    annotations = item["metadata"].get("annotations") or {}
    conditions: Iterable[Json] = (item.get("status") or {}).get("conditions") or []
    ready = next((one for one in conditions if one["type"] == "Ready"), None)
    if ready is not None and ready["status"] != "True":
        return NodeState.DOWN, str(ready.get("message") or ready.get("reason") or "")
    if item["spec"].get("unschedulable"):
        return NodeState.DRAINED, str(annotations.get(DRAINED) or "It was cordoned.")
    return (NodeState.READY, "") if ready is not None else (NodeState.UNKNOWN, "It has never reported its state.")


def cordon(client: KubernetesClient, node: str, reason: str) -> None:
    """Mark a node unschedulable, with the reason as an annotation."""
    patch = {"metadata": {"annotations": {DRAINED: reason[:1024]}}, "spec": {"unschedulable": True}}
    client.merge(path("v1", "nodes", "", node), patch)


def uncordon(client: KubernetesClient, node: str) -> None:
    """Make a node schedulable again."""
    patch = {"metadata": {"annotations": {DRAINED: None}}, "spec": {"unschedulable": None}}
    client.merge(path("v1", "nodes", "", node), patch)
