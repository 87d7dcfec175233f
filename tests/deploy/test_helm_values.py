"""Values that the chart refuses, with the field in the message, and whether values.yaml and the schema agree."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from athanor.config.env import Environment
from tests.deploy import helm
from tests.pages import EXAMPLES

SCHEMA = json.loads((helm.CHART / "values.schema.json").read_text())
OPTIONAL = ("global", "podSecurityContext")  # values.yaml has neither the first nor the content of the second
DEFAULTS = yaml.safe_load((helm.CHART / "values.yaml").read_text())
MINIMAL = helm.CHART / "ci" / "minimal-values.yaml"
PAGE = "docs/operations/helm.md:"
SECRETS = set(SCHEMA["$defs"]["secretName"]["enum"])

REFUSED = {
    "an unknown value": ({"weeb": {}}, "additional properties 'weeb' not allowed"),
    "an unknown value of web": ({"web": {"replica": 3}}, "'/web': additional properties 'replica' not allowed"),
    "an unknown value of beat": ({"beat": {"replicas": 2}}, "'/beat': additional properties 'replicas' not allowed"),
    "no image": ({"image": {"repository": ""}}, "'/image/repository': '' does not match"),
    "a short digest": ({"image": {"digest": "sha256:12"}}, "'/image/digest': 'sha256:12' does not match"),
    "no Secret": ({"secrets": {"name": ""}}, "'/secrets/name': '' does not match"),
    "no address": ({"publicUrl": ""}, "'/publicUrl': '' does not match"),
    "an address with a path": ({"publicUrl": "http://a.example/b"}, "'/publicUrl': 'http://a.example/b' does"),
    "https without proxies": ({"publicUrl": "https://a.example"}, "'/trustedProxies': minItems: got 0, want 1"),
    "a closed network without rules": ({"networkPolicy": {"enabled": True}}, "'/networkPolicy/egress': minItems"),
    "a number as a setting": ({"settings": {"ATHANOR_LOGS_DAYS": 30}}, "'/settings/ATHANOR_LOGS_DAYS': got number"),
    "a secret as a setting": ({"settings": {"ATHANOR_MASTER_KEY": "k"}}, "invalid propertyName 'ATHANOR_MASTER_KEY'"),
    "a setting that the chart makes": ({"settings": {"ATHANOR_S3_BUCKET": "b"}}, "propertyName 'ATHANOR_S3_BUCKET'"),
    "a key of another name": ({"secrets": {"from": {"PASSWORD": {"key": "a"}}}}, "invalid propertyName 'PASSWORD'"),
    "a secret as a variable": (
        {"extraEnv": [{"name": "ATHANOR_SECRET_KEY", "value": "k"}]}, "'/extraEnv/0/name': 'not' failed",
    ),
    "a monitor without metrics": ({"metrics": {"serviceMonitor": {"enabled": True}}}, "'/metrics/enabled': value must"),
    "a privileged pod": ({"podSecurityContext": {"runAsUser": 0}}, "'/podSecurityContext/runAsUser': minimum: got 0"),
    "no pod": ({"worker": {"replicas": 0}}, "'/worker/replicas': minimum: got 0, want 1"),
    "a budget that blocks drains": (
        {"web": {"podDisruptionBudget": {"maxUnavailable": 0}}}, "'/web/podDisruptionBudget/maxUnavailable'",
    ),
    "autoscaling without requests": (
        {"web": {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}},
        "'/web/resources/requests': missing property 'cpu'",
    ),
}  # fmt: skip


@helm.needs_helm
@pytest.mark.parametrize("case", REFUSED)
def test_the_message_names_the_field(case: str, tmp_path: Path) -> None:
    changes, message = REFUSED[case]
    given = tmp_path / "values.yaml"
    given.write_text(yaml.safe_dump(changes))
    done = helm.run("template", "athanor", str(helm.CHART), "-f", str(MINIMAL), "-f", str(given))
    assert done.returncode != 0
    assert message in done.stderr, done.stderr


@helm.needs_helm
def test_without_values_all_that_is_needed_is_named() -> None:
    done = helm.run("template", "athanor", str(helm.CHART))
    named = set(re.findall(r"at '/([a-zA-Z/]+)'", done.stderr))
    needed = {"secrets/name", "publicUrl", "image/repository", "networkPolicy/egress", "networkPolicy/ingressFrom"}
    assert named - {"networkPolicy"} == needed


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_no_secret_is_a_setting(name: str) -> None:
    values = {**DEFAULTS, **yaml.safe_load(MINIMAL.read_text()), "settings": {name: "x"}}
    found = [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(values)]
    assert any(name in message for message in found)


def test_every_secret_of_the_platform_comes_from_a_secret() -> None:
    secret = re.compile(r".*(_KEY|_SECRET|_TOKEN|_PASSWORD)|(ATHANOR_MIGRATION_)?DATABASE_URL|CELERY_BROKER_URL")
    names = {str(field.alias) for field in Environment.model_fields.values()}
    assert {name for name in names if secret.fullmatch(name)} <= SECRETS


def leaves(schema: dict[str, Any], values: dict[str, Any], path: str = "") -> list[str]:
    """Return the differences between the properties of a schema and the names of values.yaml."""
    known = schema.get("properties")
    if known is None or not isinstance(values, dict):
        return []
    found = [f"{path}.{name}: only in one of both" for name in (set(known) ^ set(values)) - set(OPTIONAL)]
    for name in (set(known) & set(values)) - set(OPTIONAL):
        found += leaves(known[name], values[name], f"{path}.{name}")
    return found


def test_values_and_schema_have_the_same_names() -> None:
    assert leaves(SCHEMA, DEFAULTS) == []


def test_every_object_of_the_schema_is_closed() -> None:
    def opened(schema: Any, path: str) -> list[str]:
        if isinstance(schema, list):
            return [found for one in schema for found in opened(one, path)]
        if not isinstance(schema, dict):
            return []
        found = [path] if "properties" in schema and schema.get("additionalProperties") is not False else []
        return found + [deep for name, one in schema.items() for deep in opened(one, f"{path}/{name}")]

    assert [path for path in opened(SCHEMA, "") if not path.startswith("/allOf")] == []


@helm.needs_helm
def test_the_values_of_the_page_are_valid(tmp_path: Path) -> None:
    (example,) = [one.text for one in EXAMPLES if one.place.startswith(PAGE) and one.text.startswith("image:")]
    given = tmp_path / "athanor.yaml"
    given.write_text(example)
    assert {"web", "worker", "beat", "prepare"} == set(helm.pods(helm.render(given)))
