"""With the admission policy, the platform can do its work, and its token no more than that."""

from typing import Any

import pytest
import yaml

from athanor.backends.base import Cause, Presence
from athanor.backends.facts import Level
from athanor.backends.kubernetes import names
from athanor.backends.kubernetes.client import KubernetesClient, Refused, client_of, path
from deploy.local.environment import REPOSITORY
from deploy.local.handle import wait_until
from tests.backends.cases.kubernetes import KubernetesCase
from tests.kubernetes.double.policies import Policy

MANIFEST = REPOSITORY / "deploy" / "kubernetes" / "admission-policy.yaml"
OWNED = {"labels": {names.OWNER: "athanor", "pod-security.kubernetes.io/enforce": "restricted"}}


@pytest.fixture
def confined(kubernetes: KubernetesCase) -> KubernetesCase:
    kubernetes.cluster.policies = Policy.of(MANIFEST)
    return kubernetes


@pytest.fixture
def attacker(confined: KubernetesCase) -> KubernetesClient:
    """Return a client with the platform's own token, beside a team's namespace."""
    confined.backend.sync_teams(["research"])
    return client_of(confined.backend._key, confined.backend._config)


def test_the_platform_does_its_work(confined: KubernetesCase) -> None:
    confined.use(quota={"pods": "10"}, pools={"cpu": {"annotations": {"example.com/a": "b"}}})
    handle = confined.backend.submit(confined.submission(nodes=2))
    wait_until(lambda: confined.starts(handle) == 2, "it runs", 30)
    assert confined.backend.list_ours() == {handle.backend_name}
    confined.backend.logs(handle)
    confined.backend.drain("node-2", "fans")
    confined.backend.undrain("node-2")
    confined.backend.cancel(handle)
    confined.backend.cancel(handle, force=True)
    assert confined.until(handle, Presence.FINISHED).cause is Cause.CANCELLED
    confined.use(quota={"pods": "20"})
    assert confined.backend.sync_teams(["vision", "research"]), "namespaces are made and changed"
    waiting = confined.backend.submit(confined.submission())
    wait_until(lambda: confined.starts(waiting) == 1, "another one runs", 30)
    confined.finish(waiting)
    assert confined.until(waiting, Presence.FINISHED).exit_status == 0


def test_annotations_that_the_cluster_adds_to_an_account_stay(confined: KubernetesCase) -> None:
    """As OpenShift does."""
    confined.backend.sync_teams(["research"])
    store, namespace = confined.cluster.store, names.namespace_of(confined.backend._config, "research")
    account = store.get("serviceaccounts", namespace, names.MANAGER)
    added = {"openshift.io/internal-registry-pull-secret-ref": "athanor-dockercfg"}
    store.change("serviceaccounts", account, lambda draft: draft["metadata"].update(annotations=added))
    confined.use(labels={"new": "settings"})
    assert confined.backend.sync_teams(["research"])
    assert store.get("serviceaccounts", namespace, names.MANAGER)["metadata"]["annotations"] == added


def a_job(namespace: str, account: str = "athanor", **pod: Any) -> dict[str, Any]:
    container = {"name": "a", "image": "a"}
    spec = {"restartPolicy": "Never", "containers": [container], "serviceAccountName": account, **pod}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "evil", "namespace": namespace},
        "spec": {"template": {"metadata": {}, "spec": spec}},
    }  # fmt: skip


def named(kind: str, name: str, **content: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **content}


SYSTEM, TEAM = "kube-system", "TEAM"
QUIET: dict[str, Any] = {"automountServiceAccountToken": False}
TOKEN = {"type": "kubernetes.io/service-account-token"}
ATTACKS: dict[str, tuple[str, str, str, Any]] = {
    "a Job elsewhere": ("POST", path("batch/v1", "jobs", SYSTEM), "", a_job(SYSTEM, **QUIET)),
    "a Job with a token": ("POST", path("batch/v1", "jobs", TEAM), "", a_job(TEAM)),
    "a Job of another account": ("POST", path("batch/v1", "jobs", TEAM), "", a_job(TEAM, "default", **QUIET)),
    "a Secret elsewhere": ("PATCH", path("v1", "secrets", SYSTEM, "a"), "apply", named("Secret", "a", type="Opaque")),
    "the token of an account": ("POST", path("v1", "secrets", TEAM), "", named("Secret", "a", **TOKEN)),
    "the pods elsewhere": ("DELETE", path("v1", "pods", SYSTEM), "", {}),
    "a namespace of others": (
        "PATCH", path("v1", "namespaces", "", SYSTEM), "merge", {"metadata": OWNED},
    ),
    "weaker Pod Security": (
        "PATCH", path("v1", "namespaces", "", TEAM), "merge",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
    ),
    "a namespace without Pod Security": (
        "POST", path("v1", "namespaces"), "",
        {**named("Namespace", "new"), "metadata": {"name": "new", "labels": {names.OWNER: "athanor"}}},
    ),
    "an account with rights in a cloud": (
        "PATCH", path("v1", "serviceaccounts", TEAM, "athanor"), "merge",
        {"metadata": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/admin"}}},
    ),
    "a Service to the outside": (
        "POST", path("v1", "services", TEAM), "",
        named("Service", "a", spec={"type": "LoadBalancer", "ports": [{"port": 80}]}),
    ),
    "labels of a node": (
        "PATCH", path("v1", "nodes", "", "node-1"), "merge", {"metadata": {"labels": {"pool": "h100"}}},
    ),
    "annotations of a node": (
        "PATCH", path("v1", "nodes", "", "node-1"), "merge", {"metadata": {"annotations": {"example.com/ttl": "0"}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_its_token_does_no_more(attacker: KubernetesClient, confined: KubernetesCase, attack: str) -> None:
    def send() -> None:
        method, where, kind, body = ATTACKS[attack]
        namespace = names.namespace_of(confined.backend._config, "research")
        body = yaml.safe_load(yaml.safe_dump(body).replace(TEAM, namespace))
        where = where.replace(TEAM, namespace)
        {"": lambda: attacker.request(method, where, body=body), "merge": lambda: attacker.merge(where, body),
         "apply": lambda: attacker.apply(where, body)}[kind]()  # fmt: skip

    with pytest.raises(Refused, match="denied request"):
        send()
    confined.cluster.policies = []
    send()  # its rights allow it


def test_the_health_check_sees_whether_the_account_is_confined(kubernetes: KubernetesCase) -> None:
    def confinement() -> Any:
        return next(one for one in kubernetes.backend.check_health().findings if one.check == "confinement")

    assert confinement().level is Level.WARNING
    assert "admission-policy.yaml" in confinement().remedy
    kubernetes.cluster.policies = Policy.of(MANIFEST)
    assert confinement().level is Level.OK
