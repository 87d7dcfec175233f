"""What the API server refuses with 422, of all that it checks: names, labels, and what Jobs must and may not say."""

import re
from typing import Any

from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.selectors import Object
from tests.kubernetes.double.store import KINDS

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]", re.ASCII)
VARIABLE = re.compile(r"[\x20-\x3c\x3e-\x7e]+")
IMMUTABLE = ("selector", "template", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "successPolicy")


def check(plural: str, item: Object, before: Object | None = None) -> None:
    """Raises 422 with all that is wrong."""
    wrong: list[str] = []
    metadata = item.get("metadata") or {}
    name = str(metadata.get("name", ""))
    longest = 63 if plural in ("namespaces", "services", "jobs") else 253
    if not (LABEL if longest == 63 else NAME).fullmatch(name) or len(name) > longest:
        wrong.append(f"metadata.name: Invalid value: {name!r}: a lowercase RFC 1123 name is needed")
    _check_metadata("metadata", metadata, wrong)
    if plural == "jobs":
        _check_job(item["spec"], wrong)
        if before is not None:
            _check_job_update(item["spec"], before["spec"], wrong)
    if wrong:
        kind = KINDS[plural].kind
        raise ApiError(422, f'{kind} "{name}" is invalid: {"; ".join(wrong)}')


def _check_metadata(where: str, metadata: Object, wrong: list[str]) -> None:
    for key, value in (metadata.get("labels") or {}).items():
        if not KEY.fullmatch(key):
            wrong.append(f"{where}.labels: Invalid value: {key!r}")
        if not isinstance(value, str) or len(value) > 63 or not VALUE.fullmatch(value):
            wrong.append(f"{where}.labels: Invalid value: {value!r}")
    for key, value in (metadata.get("annotations") or {}).items():
        if not KEY.fullmatch(key) or not isinstance(value, str):
            wrong.append(f"{where}.annotations: Invalid value: {key!r}")


def _check_job(spec: Object, wrong: list[str]) -> None:
    template, pod = spec["template"], spec["template"]["spec"]
    _check_metadata("spec.template.metadata", template.get("metadata") or {}, wrong)
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        wrong.append('spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"')
    indexed = spec.get("completionMode") == "Indexed"
    if indexed and spec.get("completions") is None:
        wrong.append("spec.completions: Required value: when completion mode is Indexed")
    if "podFailurePolicy" in spec:
        if pod.get("restartPolicy") != "Never":
            wrong.append(
                "spec.template.spec.restartPolicy: Invalid value: only Never is supported with podFailurePolicy"
            )
        if spec.get("podReplacementPolicy", "Failed") != "Failed":
            wrong.append("spec.podReplacementPolicy: Unsupported value: only Failed with podFailurePolicy")
        for rule in spec["podFailurePolicy"].get("rules", []):
            if rule["action"] == "FailIndex" and "backoffLimitPerIndex" not in spec:
                wrong.append("spec.podFailurePolicy.rules.action: FailIndex needs backoffLimitPerIndex")
            _check_exit_codes(rule.get("onExitCodes"), pod, wrong)
    if "backoffLimitPerIndex" in spec and not indexed:
        wrong.append("spec.backoffLimitPerIndex: only with completionMode Indexed")
    if "maxFailedIndexes" in spec and "backoffLimitPerIndex" not in spec:
        wrong.append("spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified")
    for number, container in enumerate(pod["containers"]):
        _check_container(f"spec.template.spec.containers[{number}]", container, pod, wrong)


def _check_exit_codes(found: Object | None, pod: Object, wrong: list[str]) -> None:
    if found is None:
        return
    where, values = "spec.podFailurePolicy.rules.onExitCodes", found["values"]
    if found["operator"] not in ("In", "NotIn"):
        wrong.append(f'{where}.operator: Unsupported value: supported values: "In", "NotIn"')
    if not 1 <= len(values) <= 255 or values != sorted(set(values)):
        wrong.append(f"{where}.values: Invalid value: must be 1 to 255, ordered, each once")
    if found["operator"] == "In" and 0 in values:
        wrong.append(f"{where}.values: Invalid value: must not be 0 for the In operator")
    if found.get("containerName") not in (None, *(one["name"] for one in pod["containers"])):
        wrong.append(f"{where}.containerName: Invalid value: must be one of the containers")


def _check_container(where: str, container: Object, pod: Object, wrong: list[str]) -> None:
    if not container.get("image"):
        wrong.append(f"{where}.image: Required value")
    volumes = {volume["name"] for volume in pod.get("volumes") or []}
    for mount in container.get("volumeMounts") or []:
        if mount["name"] not in volumes:
            wrong.append(f"{where}.volumeMounts.name: Not found: {mount['name']!r}")
    for variable in container.get("env") or []:
        if not VARIABLE.fullmatch(variable.get("name", "")):
            wrong.append(f"{where}.env.name: Invalid value: {variable.get('name')!r}")
        if variable.get("value") and variable.get("valueFrom"):
            wrong.append(f"{where}.env.valueFrom: Invalid value: may not be specified when `value` is not empty")
        if "\0" in variable.get("value", ""):
            wrong.append(f"{where}.env.value: Invalid value: a null byte")
    resources: dict[str, Any] = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name in {*limits, *requests}:
        if "/" in name and name in requests and requests[name] != limits.get(name):
            wrong.append(f"{where}.resources.requests: must be equal to {name} limit")


def _check_job_update(spec: Object, before: Object, wrong: list[str]) -> None:
    resumes = before.get("suspend") is True
    for name in IMMUTABLE:
        if spec.get(name) != before.get(name) and not (name == "template" and resumes):
            wrong.append(f"spec.{name}: Invalid value: field is immutable")
    if spec.get("completions") != before.get("completions") and spec.get("completions") != spec.get("parallelism"):
        wrong.append("spec.completions: Invalid value: field is immutable")
