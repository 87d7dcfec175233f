"""A team's namespace with Pod Security, a quota, a network policy, and an account without rights."""

import hashlib
import json
import threading
from typing import Any

from athanor.backends.kubernetes import names
from athanor.backends.kubernetes.client import KubernetesClient, Refused, path
from athanor.backends.kubernetes.config import KubernetesConfig

Json = dict[str, Any]


def objects_of(config: KubernetesConfig, team: str) -> list[tuple[str, str, Json]]:
    """Return (group, plural, object) in the order in which they are applied; the namespace comes first."""
    namespace = names.namespace_of(config, team)
    labels = {**config.labels, **names.owner_labels(config), names.TEAM: names.distinct(team or "default")}

    def made(group: str, kind: str, name: str, **content: Any) -> Json:
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        return {"apiVersion": group, "kind": kind, "metadata": metadata, **content}

    level = config.security.level.value
    standards = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "audit", "warn")}
    found: list[tuple[str, str, Json]] = [
        ("v1", "namespaces", {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": namespace,
                "labels": {**labels, **standards},
                "annotations": {names.TEAM_NAME: team[:1024]},
            },
        }),
        ("v1", "serviceaccounts", made("v1", "ServiceAccount", names.MANAGER, automountServiceAccountToken=False)),
    ]  # fmt: skip
    quota = config.quota_of(team)
    if quota:
        found.append(("v1", "resourcequotas", made("v1", "ResourceQuota", names.MANAGER, spec={"hard": dict(quota)})))
    if config.network_policy:
        closed = {
            "podSelector": {},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [*_name_services(config), *_platform(config)],
        }
        found.append(
            (
                "networking.k8s.io/v1",
                "networkpolicies",
                made("networking.k8s.io/v1", "NetworkPolicy", names.MANAGER, spec=closed),
            )
        )
    return found


def _name_services(config: KubernetesConfig) -> list[Json]:
    found = []
    for one in config.name_services:
        ports = [{"protocol": protocol, "port": port} for port in one.ports for protocol in ("UDP", "TCP")]
        labels = {"matchLabels": {"kubernetes.io/metadata.name": one.namespace}}
        peer = {"ipBlock": {"cidr": one.cidr}} if one.cidr is not None else {"namespaceSelector": labels}
        found.append({"to": [peer], "ports": ports})
    return found


def _platform(config: KubernetesConfig) -> list[Json]:
    found = []
    for one in config.egress:
        rule: Json = {"to": [{"ipBlock": {"cidr": one.cidr}}]}
        if one.ports:
            rule["ports"] = [{"protocol": "TCP", "port": port} for port in one.ports]
        found.append(rule)
    return found


class Namespaces:
    """The namespaces that this process has applied, with the digest of their objects."""

    def __init__(self) -> None:
        self._agreed: dict[str, str] = {}
        self._lock = threading.Lock()

    def ensure(
        self, client: KubernetesClient, config: KubernetesConfig, team: str, *, deadline: float | None = None
    ) -> bool:
        """Apply a team's objects unless they are unchanged. Return whether requests were sent.

        Raise Refused, with what could not be created, and BackendUnavailable.
        """
        objects = objects_of(config, team)
        namespace = names.namespace_of(config, team)
        digest = hashlib.sha256(json.dumps(objects, sort_keys=True).encode()).hexdigest()[:16]
        if self._agreed.get(namespace) == digest:
            return False
        for group, plural, manifest in objects:
            inside = "" if plural == "namespaces" else namespace
            try:
                client.apply(path(group, plural, inside, manifest["metadata"]["name"]), manifest, deadline=deadline)
            except Refused as error:
                what = f"{plural} {manifest['metadata']['name']} of namespace {namespace}"
                remedy = "; the platform's account needs the rights of deploy/kubernetes/rbac.yaml"
                said = f"{what} cannot be set up: {error}{remedy if error.code == 403 else ''}"
                raise Refused(error.code, error.reason, said) from error
        with self._lock:
            self._agreed[namespace] = digest
        return True

    def forget(self, namespace: str) -> None:
        """Apply the namespace again the next time."""
        with self._lock:
            self._agreed.pop(namespace, None)
