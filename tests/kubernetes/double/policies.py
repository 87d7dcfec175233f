"""ValidatingAdmissionPolicies: their expressions, evaluated as an API server does before it stores an object."""

from pathlib import Path
from typing import Any

import celpy
import yaml

from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.selectors import Object


class Policy:
    """One policy that a binding denies by."""

    def __init__(self, document: Object) -> None:
        spec = document["spec"]
        environment = celpy.Environment()

        def program(text: str) -> Any:
            return environment.program(environment.compile(text))

        self.name = document["metadata"]["name"]
        self._rules = spec["matchConstraints"]["resourceRules"]
        self._conditions = [program(one["expression"]) for one in spec.get("matchConditions") or []]
        self._validations = [(program(one["expression"]), one["message"]) for one in spec["validations"]]

    @classmethod
    def of(cls, file: Path) -> list["Policy"]:
        """Return those of a manifest."""
        documents: list[Any] = list(yaml.safe_load_all(file.read_text()))
        return [cls(one) for one in documents if one["kind"] == "ValidatingAdmissionPolicy"]

    def check(self, request: Object, item: Object | None, before: Object | None, namespace: Object | None) -> None:
        """Raise ApiError if it denies the request. An expression that cannot be evaluated denies it, too."""
        resource, operation = request["resource"], request["operation"]
        if not any(
            resource["group"] in rule["apiGroups"]
            and resource["resource"] in rule["resources"]
            and operation in rule["operations"]
            for rule in self._rules
        ):
            return
        values = {"request": request, "object": item, "oldObject": before, "namespaceObject": namespace}
        activation = {name: celpy.json_to_cel(value) for name, value in values.items()}
        if not all(condition.evaluate(activation) for condition in self._conditions):
            return
        for validation, message in self._validations:
            try:
                is_allowed = bool(validation.evaluate(activation))
            except celpy.CELEvalError as error:
                is_allowed, message = False, f"expression resulted in error: {error}"
            if not is_allowed:
                raise ApiError(
                    422, f"{resource['resource']} {request['name']!r} is forbidden: ValidatingAdmissionPolicy "
                    f"{self.name!r} with binding {self.name!r} denied request: {message}",
                )  # fmt: skip
