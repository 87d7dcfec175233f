"""From a plan to the objects of an attempt. Pure: the same plan gives the same objects.

`backoffLimit: 0`: no pod is replaced, so a Job is one try. The failure policy makes a disruption (preemption, eviction,
a node's end) the Job's own reason, which can be read when the pod is long gone.

With spare nodes or `min_nodes`, as many indexes may fail as nodes can be lost, and a pod that was killed or lost with
its node is replaced a few times (`backoffLimitPerIndex`): its agent joins the run again. An agent that ends by itself
is not started again, nor one that was asked to end, as by an eviction: it saves a checkpoint, and the attempt ends.
"""

import base64
import json
import math
from typing import Any

from athanor.backends.base import BackendRejected
from athanor.backends.kubernetes import names
from athanor.backends.kubernetes.config import KubernetesConfig, PoolConfig
from athanor.backends.plan import LaunchPlan
from trainer.contract import environment as variables

Json = dict[str, Any]
CONTAINER = "agent"
HOSTNAME = "kubernetes.io/hostname"
LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
DEADLINE_MARGIN_SECONDS = 600  # the platform ends a job at its limit; the cluster's own deadline is for when it cannot
MAX_ANNOTATION_LENGTH = 1024
# Of one index. What kills an agent more often, such as a lack of memory, is likely to do so again, and each time the
# ranks of all nodes restart.
POD_RESTARTS = 3
SHARE_OF_MEMORY = 0.9  # of what a pool's record says that its nodes have: the kubelet and other pods use the rest
LOG_BYTES = 2**30  # of a container, which a kubelet limits to less
SIGNALS = list(range(129, 193))  # exit codes of a container that a signal ended


def objects_of(config: KubernetesConfig, plan: LaunchPlan) -> list[Json]:
    """Return the Job first, which owns the others. Secret values are not included."""
    objects = [job(config, plan)]
    if plan.nodes + plan.spare_nodes > 1:
        objects.append(service(config, plan))
        if config.network_policy:
            objects.append(peers(config, plan))
    return objects


def job(config: KubernetesConfig, plan: LaunchPlan) -> Json:
    """Return the Job of the attempt."""
    pods = plan.nodes + plan.spare_nodes
    queue = config.queue_of(plan.team)
    labels = names.attempt_labels(config, plan)
    spec: Json = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        **_tries(plan),
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": config.keep_finished_seconds,
        "suspend": queue is not None,
        "template": {
            "metadata": {
                "labels": labels,
                "annotations": {
                    **config.annotations,
                    **_pool(config, plan).annotations,
                    **_queue_hints(config, plan, queue),
                },
            },
            "spec": pod(config, plan),
        },
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": plan.backend_name,
            "namespace": names.namespace_of(config, plan.team),
            "labels": {**labels, **_queue_labels(config, plan, queue)},
            "annotations": {
                **config.annotations,
                names.NODES: str(plan.fewest_nodes),
                names.JOB_NAME: plan.job_name[:MAX_ANNOTATION_LENGTH],
                names.TEAM_NAME: plan.team[:MAX_ANNOTATION_LENGTH],
            },
        },
        "spec": spec,
    }


def _tries(plan: LaunchPlan) -> Json:
    if plan.expendable_nodes:
        by_itself = {"containerName": CONTAINER, "operator": "NotIn", "values": SIGNALS}
        return {
            "backoffLimitPerIndex": POD_RESTARTS,
            "maxFailedIndexes": plan.expendable_nodes,
            "podFailurePolicy": {"rules": [{"action": "FailIndex", "onExitCodes": by_itself}]},
        }
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return {
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onPodConditions": disrupted}]},
    }


def _pool(config: KubernetesConfig, plan: LaunchPlan) -> PoolConfig:
    return config.pools.get(plan.pool, PoolConfig())


def _queue_labels(config: KubernetesConfig, plan: LaunchPlan, queue: str | None) -> dict[str, str]:
    if queue is None:
        return {}
    priority = config.queue_priorities.get(plan.priority)
    return {names.QUEUE: queue, **({names.QUEUE_PRIORITY: priority} if priority is not None else {})}


def _queue_hints(config: KubernetesConfig, plan: LaunchPlan, queue: str | None) -> dict[str, str]:
    """Return the annotations by which Kueue places pods: it does not use affinities."""
    if queue is None or not config.topology_labels or plan.nodes + plan.spare_nodes == 1:
        return {}
    kind = "preferred" if plan.max_switches is None else "required"
    return {f"kueue.x-k8s.io/podset-{kind}-topology": _domain(config, plan)}


def pod(config: KubernetesConfig, plan: LaunchPlan) -> Json:
    """Return the specification of the Job's pods."""
    pool = _pool(config, plan)
    spec: Json = {
        "restartPolicy": "Never",
        "serviceAccountName": names.MANAGER,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": config.stop_grace_seconds,
        # The pod's, which runs from its start: a Job's would run while its pods wait for room.
        "activeDeadlineSeconds": plan.time_limit_seconds + DEADLINE_MARGIN_SECONDS,
        "securityContext": _pod_security(config),
        "containers": [container(config, plan)],
        "volumes": _volumes(config),
        "tolerations": _tolerations(config, plan, pool),
    }
    if plan.nodes + plan.spare_nodes > 1:
        spec["subdomain"] = plan.backend_name
    if pool.node_selector:
        spec["nodeSelector"] = dict(pool.node_selector)
    if affinity := _affinity(config, plan):
        spec["affinity"] = affinity
    if pool.runtime_class is not None:
        spec["runtimeClassName"] = pool.runtime_class
    if pool.scheduler is not None:
        spec["schedulerName"] = pool.scheduler
    if pool.host_network:
        spec["hostNetwork"], spec["dnsPolicy"] = True, "ClusterFirstWithHostNet"
    if pool.resource_claims:
        spec["resourceClaims"] = [
            {"name": name, "resourceClaimTemplateName": template} for name, template in pool.resource_claims.items()
        ]
    if name := config.priority_classes.get(plan.priority):
        spec["priorityClassName"] = name
    if config.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in config.image_pull_secrets]
    return spec


def container(config: KubernetesConfig, plan: LaunchPlan) -> Json:
    """Return the agent's container."""
    mounts: list[Json] = [{"name": "work", "mountPath": config.work_directory}, {"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - of the container
    if config.shared_memory_bytes:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - as above
    if config.profile.cache_directory is not None:
        mounts.append({"name": "cache", "mountPath": config.profile.cache_directory})
    found: Json = {
        "name": CONTAINER,
        "image": config.images.get(plan.accelerator, config.image),
        "imagePullPolicy": config.image_pull_policy.value,
        "command": [literal(part) for part in config.command],
        "env": _variables(config, plan),
        "resources": _resources(config, plan),
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    security: Json = {"allowPrivilegeEscalation": False}
    capabilities: Json = {"drop": ["ALL"]} if config.security.drop_capabilities else {}
    if _pool(config, plan).lock_memory:
        capabilities["add"] = ["IPC_LOCK"]
    if capabilities:
        security["capabilities"] = capabilities
    if config.security.read_only_root:
        security["readOnlyRootFilesystem"] = True
    found["securityContext"] = security
    return found


def environment(config: KubernetesConfig, plan: LaunchPlan) -> dict[str, str]:
    """Return the plain variables of all agents of the attempt."""
    return {
        "HOME": config.work_directory,
        **config.profile.variables(plan.accelerator, plan.nodes + plan.spare_nodes),
        **plan.environment,
        variables.WORK_DIR: config.work_directory,
    }


def _variables(config: KubernetesConfig, plan: LaunchPlan) -> list[Json]:
    fields = {
        variables.NODE_INDEX: f"metadata.annotations['{names.INDEX}']",
        variables.NODE_NAME: "spec.nodeName",
        variables.NODE_ADDRESS: "status.podIP",
    }
    found: list[Json] = [
        {"name": name, "value": literal(value)} for name, value in sorted(environment(config, plan).items())
    ]
    found += [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}} for name, field in fields.items()]
    found += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": plan.backend_name, "key": name}}}
        for name in sorted(plan.secrets)
    ]
    return found


def literal(text: str) -> str:
    """Escape a value: in values and commands `$(NAME)` is a reference, and two dollars are one."""
    return text.replace("$", "$$")


def _resources(config: KubernetesConfig, plan: LaunchPlan) -> Json:
    if plan.accelerator not in config.accelerators:
        known = ", ".join(sorted(config.accelerators))
        raise BackendRejected(
            f"this cluster has no accelerator {plan.accelerator!r} (it has {known}); "
            "name its resource in the cluster's configuration under accelerators"
        )
    resource, pool = config.accelerators[plan.accelerator], _pool(config, plan)
    cpus = plan.processes_per_node * (plan.cpus_per_process or config.cpus_per_process)
    requests = {"cpu": f"{math.ceil(cpus * 1000)}m"}
    limits: dict[str, str] = {}
    memory = plan.memory_bytes_per_node
    if memory is None and config.memory_bytes_per_process is not None:
        memory = config.memory_bytes_per_process * plan.processes_per_node
    if memory is None and plan.memory_share_bytes is not None:
        memory = int(plan.memory_share_bytes * SHARE_OF_MEMORY)
    if memory is not None:
        requests["memory"] = limits["memory"] = str(memory)
    if resource is not None:
        requests[resource] = limits[resource] = str(plan.processes_per_node)
    if config.work_bytes is not None:
        storage = config.work_bytes + config.temporary_bytes + LOG_BYTES
        requests["ephemeral-storage"] = limits["ephemeral-storage"] = str(storage)
    for name, quantity in pool.resources.items():
        requests[name] = limits[name] = quantity
    found: Json = {"requests": requests, **({"limits": limits} if limits else {})}
    if pool.resource_claims:
        found["claims"] = [{"name": name} for name in pool.resource_claims]
    return found


def _pod_security(config: KubernetesConfig) -> Json:
    security = config.security
    found: Json = {"fsGroupChangePolicy": "OnRootMismatch", "runAsNonRoot": security.run_as_user != 0}
    if security.run_as_user is not None:
        found["runAsUser"] = security.run_as_user
    if security.run_as_group is not None:
        found["runAsGroup"] = found["fsGroup"] = security.run_as_group
    if security.seccomp:
        found["seccompProfile"] = {"type": "RuntimeDefault"}
    return found


def _volumes(config: KubernetesConfig) -> list[Json]:
    work: Json = {"sizeLimit": str(config.work_bytes)} if config.work_bytes is not None else {}
    temporary = {"sizeLimit": str(config.temporary_bytes)}
    volumes: list[Json] = [{"name": "work", "emptyDir": work}, {"name": "tmp", "emptyDir": temporary}]
    if config.shared_memory_bytes:
        shm = {"medium": "Memory", "sizeLimit": str(config.shared_memory_bytes)}
        volumes.append({"name": "shm", "emptyDir": shm})
    if config.profile.cache_directory is not None:
        if config.cache.claim is not None:
            volumes.append({"name": "cache", "persistentVolumeClaim": {"claimName": config.cache.claim}})
        elif config.cache.host_path is not None:
            volumes.append({"name": "cache", "hostPath": {"path": config.cache.host_path, "type": "DirectoryOrCreate"}})
        else:
            volumes.append({"name": "cache", "emptyDir": {}})
    return volumes


def _tolerations(config: KubernetesConfig, plan: LaunchPlan, pool: PoolConfig) -> list[Json]:
    found = [one.manifest() for one in pool.tolerations]
    resource = config.accelerators.get(plan.accelerator)
    if resource is not None:
        found.append({"key": resource, "operator": "Exists", "effect": "NoSchedule"})
    found += [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": config.lost_node_seconds}
        for key in LOST
    ]
    return found


def _affinity(config: KubernetesConfig, plan: LaunchPlan) -> Json:
    found: Json = {}
    pods = plan.nodes + plan.spare_nodes
    mine = {"matchLabels": {names.ATTEMPT: plan.backend_name}}
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in sorted(plan.avoid_nodes)]
    if plan.only_node:
        fields.append({"key": "metadata.name", "operator": "In", "values": [plan.only_node]})
    if fields:
        found["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}
        }
    if pods > 1 and config.topology_labels:
        if plan.max_switches is not None:
            term = {"topologyKey": _domain(config, plan), "labelSelector": mine}
            found["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        else:
            near = [
                {"weight": 10 * (level + 1), "podAffinityTerm": {"topologyKey": key, "labelSelector": mine}}
                for level, key in enumerate(config.topology_labels[:10])
            ]
            found["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": near}
    apart: list[Json] = []
    if pods > 1 and config.distinct_nodes:
        apart.append({"topologyKey": HOSTNAME, "labelSelector": mine})
    if plan.exclusive:
        others = {
            "matchLabels": names.owner_labels(config),
            "matchExpressions": [{"key": names.ATTEMPT, "operator": "NotIn", "values": [plan.backend_name]}],
        }
        apart.append({"topologyKey": HOSTNAME, "labelSelector": others, "namespaceSelector": {}})
    if apart:
        found["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": apart}
    return found


def _domain(config: KubernetesConfig, plan: LaunchPlan) -> str:
    """Return the label whose value all nodes of the attempt share: the innermost switch, or the one above it.

    The one above it applies if more than one switch is allowed.
    """
    level = -1 if plan.max_switches in (None, 1) else -2
    return config.topology_labels[max(level, -len(config.topology_labels))]


def service(config: KubernetesConfig, plan: LaunchPlan) -> Json:
    """Return the headless Service that names the pods `<attempt>-<index>.<attempt>`, also while they start."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(config, plan),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.ATTEMPT: plan.backend_name},
        },
    }


def peers(config: KubernetesConfig, plan: LaunchPlan) -> Json:
    """Return the NetworkPolicy by which only pods of the same attempt may connect to each other."""
    mine = {"podSelector": {"matchLabels": {names.ATTEMPT: plan.backend_name}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(config, plan),
        "spec": {
            **mine,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [mine]}],
            "egress": [{"to": [mine]}],
        },
    }


def secret(config: KubernetesConfig, plan_name: str, namespace: str, values: dict[str, str]) -> Json:
    """Return the Secret of the attempt. Only `submit` creates it: it is in no text and no payload."""
    data = {name: base64.b64encode(value.encode()).decode() for name, value in sorted(values.items())}
    labels = {**names.owner_labels(config), names.ATTEMPT: plan_name}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": plan_name, "namespace": namespace, "labels": labels},
        "type": "Opaque",
        "immutable": True,
        "data": data,
    }


def deletion(**options: str | int) -> Json:
    """Return the options of a deletion."""
    return {"apiVersion": "v1", "kind": "DeleteOptions", **options}


def owned_by(manifest: Json, owner: Json) -> Json:
    """Return the object with the Job as its owner."""
    reference = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def _metadata(config: KubernetesConfig, plan: LaunchPlan) -> Json:
    labels = {**names.owner_labels(config), names.ATTEMPT: plan.backend_name}
    return {"name": plan.backend_name, "namespace": names.namespace_of(config, plan.team), "labels": labels}


def shown(objects: list[Json], secrets: list[str]) -> str:
    """Return the objects as JSON for users, which `kubectl apply -f` accepts."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2, ensure_ascii=False)
    kept = ", ".join(sorted(secrets))
    return f"{text}\n# A Secret of the same name holds {kept}." if kept else text
