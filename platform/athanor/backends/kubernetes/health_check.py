"""The health check of a Kubernetes cluster: do we have the rights that we need, and would a job start?"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from athanor.backends.base import BackendUnavailable
from athanor.backends.facts import Finding, HealthCheck, Level, NodeState
from athanor.backends.kubernetes import inventory, names
from athanor.backends.kubernetes.client import KubernetesClient, Refused, path
from athanor.backends.kubernetes.config import KubernetesConfig, PodSecurity
from athanor.backends.kubernetes.reading import Reading

Json = dict[str, Any]
MIN_VERSION = (1, 29)  # backoffLimitPerIndex and podReplacementPolicy are on by default since then
MAX_SKEW_SECONDS = 60.0
SYSTEM = "kube-system"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
RIGHTS_REMEDY = "apply deploy/kubernetes/rbac.yaml and bind it to the account that the platform uses"
# (group, resource, verbs): without these nothing runs.
NEEDED = (
    ("batch", "jobs", ("create", "get", "list", "watch", "patch", "delete")),
    ("", "pods", ("list", "watch", "deletecollection")),
    ("", "pods/log", ("get",)),
    ("", "secrets", ("create", "patch")),
    ("", "services", ("create", "patch")),
    ("", "serviceaccounts", ("create", "patch")),
    ("", "namespaces", ("create", "patch")),
)
WITH_NETWORK_POLICY = ("networking.k8s.io", "networkpolicies", ("create", "patch"))
WITH_QUOTA = ("", "resourcequotas", ("create", "patch"))
# Without these less is known or can be done: (group, resource, verbs, what for).
USEFUL = (
    ("", "nodes", ("get", "list"), "nodes are not listed, and a lost node cannot be distinguished from a slow one"),
    ("", "nodes", ("patch",), "nodes cannot be drained"),
    ("", "events", ("list",), "why pods are not created, and what took a pod's place, is not always known"),
)


def check_health(config: KubernetesConfig, connect: Callable[[], KubernetesClient]) -> HealthCheck:
    """Return the findings. `connect` returns the client, or raises BackendUnavailable."""
    version = ""
    facts: dict[str, object] = {}
    findings: list[Finding] = []
    try:
        client = connect()
        before = time.time()
        answer = client.json("GET", "/version")
        version = str(answer.get("gitVersion") or "")
        findings += [_version(client, version), _clock(client, before)]
        groups = {str(group["name"]) for group in client.json("GET", "/apis").get("groups") or []}
        facts["jobset"], facts["kueue"] = "jobset.x-k8s.io" in groups, "kueue.x-k8s.io" in groups
        findings += _rights(config, client)
        findings += _queues(config, groups)
        findings += _priorities(config, client)
        findings += _network(config)
        for name, check in (("confinement", _confinement), ("pod security", _namespaces), ("nodes", _nodes)):
            try:
                findings += check(config, client)
            except Refused as error:
                findings.append(Finding(name, Level.WARNING, f"cannot be checked: {error}", RIGHTS_REMEDY))
    except (BackendUnavailable, Refused) as error:
        findings.append(
            Finding(
                "api server", Level.ERROR, str(error),
                "see that kubeconfig_file and context name a cluster that this machine reaches, and that its "
                "credentials are good: kubectl --kubeconfig FILE --context CONTEXT version",
            )
        )  # fmt: skip
    return HealthCheck(version, tuple(findings), facts)


def _version(client: KubernetesClient, version: str) -> Finding:
    try:
        major, minor = (int("".join(filter(str.isdigit, part))) for part in version.lstrip("v").split(".")[:2])
    except ValueError:
        major, minor = 0, 0
    if (major, minor) < MIN_VERSION:
        needed = ".".join(map(str, MIN_VERSION))
        return Finding("api server", Level.ERROR, f"{client.server} is {version}", f"upgrade it to {needed} or newer")
    return Finding("api server", Level.OK, f"{client.server} is {version}")


def _clock(client: KubernetesClient, now: float) -> Finding:
    skew = client.server_now() - now
    if abs(skew) > MAX_SKEW_SECONDS:
        detail = f"its clock is off from ours by {skew:.0f} s; times in its logs and ours do not agree"
        return Finding("clock", Level.WARNING, detail, "let both keep time by NTP")
    return Finding("clock", Level.OK, "its clock agrees with ours")


def _rights(config: KubernetesConfig, client: KubernetesClient) -> Iterator[Finding]:
    needed = [*NEEDED]
    if config.network_policy:
        needed.append(WITH_NETWORK_POLICY)
    if config.quota or config.quotas:
        needed.append(WITH_QUOTA)
    missing = [
        f"{verb} {resource}"
        for group, resource, verbs in needed
        for verb in verbs
        if not may(client, group, resource, verb)
    ]
    if missing:
        yield Finding("rights", Level.ERROR, f"our account may not: {', '.join(missing)}", RIGHTS_REMEDY)
    else:
        yield Finding("rights", Level.OK, "our account may do all that jobs need, in all namespaces")
    for group, resource, verbs, loss in USEFUL:
        lacking = [f"{verb} {resource}" for verb in verbs if not may(client, group, resource, verb)]
        if lacking:
            yield Finding("rights", Level.WARNING, f"our account may not {', '.join(lacking)}: {loss}", RIGHTS_REMEDY)


def may(client: KubernetesClient, group: str, resource: str, verb: str) -> bool:
    """Return whether we have the right in all namespaces: those of the teams are created on demand."""
    name, _, sub = resource.partition("/")
    attributes = {"group": group, "resource": name, "verb": verb, **({"subresource": sub} if sub else {})}
    asked = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    return bool((client.json("POST", REVIEWS, body=asked).get("status") or {}).get("allowed"))


def _queues(config: KubernetesConfig, groups: set[str]) -> Iterator[Finding]:
    is_used = config.queue is not None or bool(config.queues)
    if is_used and "kueue.x-k8s.io" not in groups:
        yield Finding(
            "kueue", Level.ERROR, "queue is configured, but the cluster has no Kueue: Jobs would be suspended for ever",
            "install Kueue, or remove queue and queues from the configuration",
        )  # fmt: skip
    elif "kueue.x-k8s.io" in groups and not is_used:
        yield Finding("kueue", Level.OK, "Kueue is there and not used: no queue is configured")
    elif is_used:
        yield Finding("kueue", Level.OK, "Jobs wait in Kueue's queues")


def _priorities(config: KubernetesConfig, client: KubernetesClient) -> Iterator[Finding]:
    for priority, name in sorted(config.priority_classes.items()):
        try:
            client.json("GET", path("scheduling.k8s.io/v1", "priorityclasses", "", name))
        except Refused as error:
            level = Level.ERROR if error.code == 404 else Level.WARNING
            remedy = f"create PriorityClass {name}, or name another under priority_classes.{priority}"
            yield Finding("priorities", level, f"priority_classes.{priority}: {error}", remedy)


def _network(config: KubernetesConfig) -> Iterator[Finding]:
    if config.network_policy and not config.egress:
        yield Finding(
            "network", Level.WARNING, "network_policy is on and egress is empty: where the cluster enforces policies, "
            "pods reach neither the platform nor the object store",
            "list their addresses and ports under egress, e.g. {cidr: 10.0.0.0/8, ports: [443]}",
        )  # fmt: skip
    elif not config.network_policy:
        yield Finding(
            "network", Level.WARNING, "network_policy is off: pods of different teams can reach each other",
            "turn it on and list the platform and the object store under egress",
        )  # fmt: skip


def _namespaces(config: KubernetesConfig, client: KubernetesClient) -> Iterator[Finding]:
    """Check whether the cluster enforces the Pod Security level of teams' namespaces, by a dry run."""
    found = client.json("GET", path("v1", "namespaces"), labelSelector=names.ours(config), limit=1).get("items") or []
    if config.security.level is not PodSecurity.RESTRICTED:
        yield Finding(
            "pod security", Level.WARNING, f"namespaces enforce {config.security.level.value}, not restricted",
            "set security.level to restricted, if nothing that runs here needs more",
        )  # fmt: skip
        return
    if not found:
        yield Finding("pod security", Level.OK, "no team has a namespace yet; checked once one has")
        return
    namespace = found[0]["metadata"]["name"]
    try:
        response = client.request(
            "POST", path("batch/v1", "jobs", namespace), body=_probe(privileged=True), dryRun="All",
            fieldManager=names.MANAGER,
        )  # fmt: skip
    except Refused as error:
        yield Finding("pod security", Level.OK, f"a privileged Job is refused in {namespace}: {error}")
        return
    if "PodSecurity" in response.headers.get("Warning", ""):
        yield Finding("pod security", Level.OK, f"namespace {namespace} refuses pods that break the level restricted")
    else:
        yield Finding(
            "pod security", Level.ERROR, f"a privileged Job raised no warning in {namespace}",
            "turn the admission plugin PodSecurity on (it is by default since 1.23)",
        )  # fmt: skip


def _confinement(config: KubernetesConfig, client: KubernetesClient) -> Iterator[Finding]:
    """Check whether our account could run a pod in a namespace that is not ours, by a dry run."""
    try:
        client.request(
            "POST", path("batch/v1", "jobs", SYSTEM), body=_probe(), dryRun="All", fieldManager=names.MANAGER
        )
    except Refused as error:
        yield Finding("confinement", Level.OK, f"our account may create no Job in {SYSTEM}: {error}")
        return
    yield Finding(
        "confinement", Level.WARNING, f"our account may create Jobs in {SYSTEM}: its token could take over the cluster",
        "kubectl apply -f deploy/kubernetes/admission-policy.yaml",
    )  # fmt: skip


def _probe(*, privileged: bool = False) -> Json:
    """Return a Job under our account, as the platform's own are."""
    container = {"name": "probe", "image": "probe", "securityContext": {"privileged": privileged}}
    pod = {
        "restartPolicy": "Never", "containers": [container], "serviceAccountName": names.MANAGER,
        "automountServiceAccountToken": False,
    }  # fmt: skip
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "athanor-probe"},
        "spec": {"suspend": True, "template": {"metadata": {}, "spec": pod}},
    }


def _nodes(config: KubernetesConfig, client: KubernetesClient) -> Iterator[Finding]:
    nodes = inventory.nodes(config, client, Reading(config, client))
    ready = [node for node in nodes if node.state is NodeState.READY]
    if not ready:
        yield Finding(
            "nodes", Level.ERROR, f"none of {len(nodes)} nodes is ready and free of taints that no pool tolerates",
            "see kubectl get nodes; name what they are tainted with under pools.NAME.tolerations",
        )  # fmt: skip
        return
    kinds = sorted({node.accelerator for node in nodes})
    slots = sum(node.slots for node in ready)
    yield Finding(
        "nodes", Level.OK, f"{len(ready)} of {len(nodes)} nodes are ready: {slots} slots of {', '.join(kinds)}"
    )
    for name, pool in sorted(config.pools.items()):
        if not any(name in node.pools for node in nodes):
            labels = ", ".join(f"{key}={value}" for key, value in sorted(pool.node_selector.items()))
            yield Finding(
                "pools", Level.WARNING, f"pool {name}: no node has {labels}", "label nodes, or fix its node_selector"
            )
    for key in config.topology_labels:
        bare = sum(1 for node in nodes if key not in node.labels)
        if bare:
            detail = f"{bare} of {len(nodes)} nodes have no label {key}: jobs that need one switch never run there"
            yield Finding("topology", Level.WARNING, detail, "label them, or remove it from topology_labels")
