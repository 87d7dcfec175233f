"""The manifest of rights and what is asked for agree."""

from typing import Any

import yaml

from athanor.backends.kubernetes import health_check
from deploy.local.environment import REPOSITORY
from tests.kubernetes.double.schema import Schemas
from tests.kubernetes.double.store import Kind

MANIFEST = REPOSITORY / "deploy" / "kubernetes" / "rbac.yaml"


def granted() -> set[tuple[str, str, str]]:
    documents: list[Any] = list(yaml.safe_load_all(MANIFEST.read_text()))
    (role,) = [one for one in documents if one["kind"] == "ClusterRole"]
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_manifest_grants_what_the_health_check_asks_for_and_no_more() -> None:
    needed = [
        *health_check.NEEDED,
        health_check.WITH_NETWORK_POLICY,
        health_check.WITH_QUOTA,
        *(one[:3] for one in health_check.USEFUL),
    ]
    asked = {(group, resource, verb) for group, resource, verbs in needed for verb in verbs}
    by_the_health_check = {("scheduling.k8s.io", "priorityclasses", "get"), ("", "namespaces", "list")}
    assert granted() == asked | by_the_health_check


def test_the_manifest_is_valid() -> None:
    schemas = Schemas.found()
    for document in yaml.safe_load_all(MANIFEST.read_text()):
        group, _, version = document["apiVersion"].rpartition("/")
        if schemas is not None:
            assert schemas.problems(Kind(group, version, "", document["kind"], False), document) == []
        assert document["metadata"]["name"].startswith("athanor")
