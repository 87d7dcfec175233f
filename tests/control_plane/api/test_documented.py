"""The OpenAPI document explains itself: operations, parameters and properties say what they are for."""

import json
import re
from typing import Any

import jsonschema
import pytest

from athanor.api.agent import urls as agent_urls
from athanor.api.resources import RESOURCES
from athanor.api.v1 import urls
from deploy.local import checks

DOCUMENT = json.loads(checks.OPENAPI_DOCUMENT.read_text())
SCHEMAS: dict[str, dict[str, Any]] = DOCUMENT["components"]["schemas"]
OPERATIONS: dict[str, dict[str, Any]] = {
    operation["operationId"]: operation for methods in DOCUMENT["paths"].values() for operation in methods.values()
}
SENTENCE = re.compile(r"[A-Z`].*[^.]\.")


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_an_operation_has_a_summary_and_a_description(name: str) -> None:
    summary, description = OPERATIONS[name].get("summary", ""), OPERATIONS[name].get("description", "")
    assert 3 <= len(summary) <= 60, "the first line of the view method's docstring, in the imperative"
    assert re.fullmatch(r"[A-Z].*[^.\s]", summary), f"{summary!r}: a capital first, no full stop"
    assert SENTENCE.match(description), f"{description!r}: the rest of the docstring, in full sentences"
    assert description.rstrip(".") != summary, "the description says more than the summary"


def test_no_two_operations_have_the_same_summary() -> None:
    summaries = [operation.get("summary") for operation in OPERATIONS.values()]
    assert sorted({each for each in summaries if summaries.count(each) > 1}) == []


def test_an_operation_belongs_to_one_resource() -> None:
    known = [tag["name"] for tag in DOCUMENT["tags"]]
    assert known == [resource.name for resource in RESOURCES]
    assert all(SENTENCE.match(tag["description"]) for tag in DOCUMENT["tags"])
    wrong = {
        name: each.get("tags") for name, each in OPERATIONS.items() if len(set(each.get("tags", ())) & {*known}) != 1
    }
    assert wrong == {}, "name its address in athanor.api.resources"
    assert all(len(each["tags"]) == 1 for each in OPERATIONS.values())
    assert {*known} == {each["tags"][0] for each in OPERATIONS.values()}, "a resource without an operation"


def test_every_parameter_is_described() -> None:
    bare = [
        f"{name} {parameter['in']} {parameter['name']}"
        for name, operation in OPERATIONS.items()
        for parameter in operation.get("parameters", [])
        if not _is_described(parameter)
    ]
    assert bare == [], "description=, or PATH_PARAMETERS in athanor.api.schema"


def test_every_property_is_described() -> None:
    bare = [
        f"{name}.{field}"
        for name, schema in SCHEMAS.items()
        for field, content in schema.get("properties", {}).items()
        if not _is_described(content)
    ]
    assert bare == [], "help_text=, or COMMON_FIELDS in athanor.api.schema"


def test_every_response_is_described() -> None:
    bare = [
        f"{name} {status}"
        for name, operation in OPERATIONS.items()
        for status, response in operation["responses"].items()
        if not _is_described(response)
    ]
    assert bare == [], "OpenApiResponse(..., description=), or the docstring of its serializer"


def test_every_component_is_described() -> None:
    """Enumerations are described where they are used: their components are made by drf-spectacular."""
    bare = [name for name, schema in SCHEMAS.items() if "enum" not in schema and not _is_described(schema)]
    assert bare == [], "a docstring of the serializer, or build_serializer(description=)"


@pytest.mark.parametrize("pattern", [*urls.urlpatterns, *agent_urls.urlpatterns], ids=lambda each: str(each.pattern))
def test_a_view_whose_docstring_names_addresses_names_its_own(pattern: Any) -> None:
    docstring = pattern.callback.view_class.__dict__.get("__doc__") or ""
    assert docstring, "a public class has a docstring of its own"
    if docstring.startswith("Requests to"):
        address = re.sub(r"<\w+:(\w+)>", r"{\1}", f"/{pattern.pattern}")
        assert f"`{address}`" in docstring


@pytest.mark.parametrize("name", ["Job", "JobSummary", "Problem"])
def test_the_main_responses_have_an_example_that_fits_their_schema(name: str) -> None:
    for example in SCHEMAS[name]["examples"]:
        _validate(example, {"$ref": f"#/components/schemas/{name}"})


def test_a_submission_has_an_example_that_fits_its_schema() -> None:
    content = OPERATIONS["jobs_submit"]["requestBody"]["content"]["application/json"]
    examples = [each["value"] for each in content["examples"].values()]
    assert examples
    for example in examples:
        _validate(example, content["schema"])


def _validate(value: Any, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(value)


def _is_described(thing: dict[str, Any]) -> bool:
    return bool(re.match(r"[A-Z`0-9].*\.$", thing.get("description", ""), re.DOTALL))
