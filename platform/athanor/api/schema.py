"""How views become operations of the OpenAPI document, and where texts that many of them share are defined once.

An operation's summary is the first line of its view method's docstring, its description is the rest. Fields are
described by `help_text`; a field without one takes the text that COMMON_FIELDS has for its name.
"""

import inspect
import textwrap
from typing import Any

from drf_spectacular.openapi import AutoSchema
from rest_framework import serializers

from athanor.api.examples import OF_COMPONENTS
from athanor.api.resources import resource_of

COMMON_FIELDS = {
    "id": "Identifier. It never changes and is never reused.",
    "created_at": "Time of creation, ISO 8601 in UTC.",
    "updated_at": "Time of the last change, ISO 8601 in UTC.",
    "team": "The team that it belongs to.",
}
PATH_PARAMETERS = {
    "account_id": "Id of the service account.",
    "alert_rule_id": "Id of the alert rule.",
    "alias": "Name of the alias: lower-case letters, digits and -, beginning with a letter.",
    "artifact_id": "Id of the artifact.",
    "attempt_number": "Number of the attempt within its job, from 1.",
    "budget_id": "Id of the budget.",
    "checkpoint_id": "Id of the checkpoint.",
    "cluster_id": "Id of the cluster.",
    "dataset_id": "Id of the data set.",
    "decision_id": "Id of the admission decision.",
    "deletion_id": "Id of the deletion.",
    "delivery_id": "Id of the delivery.",
    "invitation_id": "Id of the invitation.",
    "job_id": "Id of the job.",
    "model_id": "Id of the model.",
    "node_name": "Name of the node within its cluster.",
    "passkey_id": "Id of the passkey.",
    "pool_id": "Id of the pool, as `GET /prices` lists it.",
    "pool_name": "Name of the pool within its cluster.",
    "team_name": "Name or id of the team.",
    "project_id": "Id of the project.",
    "secret_id": "Id of the secret.",
    "series_id": "Id of the series.",
    "session_id": "Id of the session, as `GET /sessions` lists it.",
    "signing_key_id": "Id of the signing key.",
    "simulation_id": "Id of the simulation.",
    "team_id": "Id of the team.",
    "token_id": "Id of the token. It is not the token itself.",
    "user_id": "Id of the user.",
    "version_number": "Number of the version within its model, from 1.",
    "webhook_id": "Id of the webhook.",
}


class DocumentedSchema(AutoSchema):
    """Takes summaries and descriptions from docstrings, and tags from the address."""

    def get_tags(self) -> list[str]:
        """Return the resource of the address."""
        found = resource_of(self.path)
        return [found.name] if found else []

    def get_summary(self) -> str | None:
        """Return the first line of the method's docstring without its full stop."""
        return self._docstring()[0].rstrip(".") or None

    def get_description(self) -> str:  # type: ignore[override] # drf-spectacular's AutoSchema takes no arguments, DRF's does
        """Return the rest of the method's docstring."""
        return self._docstring()[1]

    def _docstring(self) -> tuple[str, str]:
        """Return the first paragraph of the method's docstring and the rest, each paragraph as one line."""
        text = inspect.getdoc(getattr(self.view, self.method.lower())) or ""
        first, *rest = (" ".join(textwrap.dedent(part).split()) for part in text.split("\n\n"))
        return first, "\n\n".join(rest)

    def _resolve_path_parameters(self, variables: list[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = super()._resolve_path_parameters(variables)  # type: ignore[no-untyped-call] # no types there
        for parameter in found:
            if text := PATH_PARAMETERS.get(parameter["name"]):
                parameter["description"] = text
        return found

    def _get_serializer_field_meta(self, field: Any, direction: Any) -> dict[str, Any]:
        meta: dict[str, Any] = super()._get_serializer_field_meta(  # type: ignore[no-untyped-call] # no types there
            field, direction
        )
        if isinstance(field, serializers.Field) and field.field_name in COMMON_FIELDS:
            meta.setdefault("description", COMMON_FIELDS[field.field_name])
        return meta


def describe_responses(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Describe successful responses by their components: a hook of drf-spectacular for the finished document.

    A response of an operation that has a description of its own keeps it.
    """
    schemas = result["components"]["schemas"]
    for operations in result["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if status == "204":
                    response["description"] = "No response body."
                elif status.startswith("2") and not response.get("description"):
                    response["description"] = _description_of(response, schemas)
    return result


def _description_of(response: dict[str, Any], schemas: dict[str, Any]) -> str:
    for content in response.get("content", {}).values():
        component = content["schema"].get("$ref", "").rpartition("/")[2]
        if component:
            return str(schemas[component].get("description", ""))
    return ""


def add_examples(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Give components their examples: a hook of drf-spectacular, which calls it with the finished document.

    A component has its example once; a response's own would be repeated in each of the operations.
    """
    for name, example in OF_COMPONENTS.items():
        result["components"]["schemas"][name]["examples"] = [example]
    return result
