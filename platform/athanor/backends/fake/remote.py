"""A scripted world in a process of its own, reached over HTTP: it outlives every process of the platform.

Each call is a POST with a JSON body; tests/chaos/world.py and tests/worlds.py implement the server.
"""

import http.client
import json
from collections.abc import Sequence
from typing import Any

from athanor.backends.base import (
    BackendRejected,
    BackendUnavailable,
    Cause,
    LogPart,
    Observation,
    Obstacle,
    Phase,
    Presence,
    Submission,
)
from athanor.backends.facts import Finding, HealthCheck, Level, NodeFacts, NodeState


class RemoteWorld:
    """The client of a world at `address` (host:port).

    A call that is not answered in time raises BackendUnavailable; it may have been carried out or not.
    """

    def __init__(self, address: str, timeout_seconds: float) -> None:
        self._address = address
        self._timeout_seconds = timeout_seconds

    def submit(self, submission: Submission) -> None:
        """Start an attempt unless it exists."""
        environment = {**submission.environment, **submission.secrets}
        body = {"name": submission.backend_name, "environment": environment, "asked": submission.payload}
        self._ask("submit", body)

    def observe(self, names: Sequence[str]) -> dict[str, Observation]:
        """Return the observation of each name."""
        answers = self._ask("observe", {"names": list(names)})
        return {name: _observation(answers[name]) for name in names}

    def cancel(self, name: str, *, force: bool) -> None:
        """Ask an attempt to end."""
        self._ask("cancel", {"name": name, "force": force})

    def logs(self, name: str, cursor: str | None) -> LogPart:
        """Return a part of an attempt's output."""
        answer = self._ask("logs", {"name": name, "cursor": cursor})
        return LogPart(answer["text"], answer["cursor"])

    def list_ours(self) -> frozenset[str]:
        """Return the names of the running attempts."""
        return frozenset(self._ask("list", {})["names"])

    def check_health(self) -> HealthCheck:
        """Return the scripted findings."""
        try:
            said = self._ask("probe", {})
        except BackendUnavailable as error:
            remedy = "start the world that answers at `address`"
            return HealthCheck("", (Finding("answer", Level.ERROR, str(error), remedy),))
        findings = (Finding(**{**each, "level": Level(each["level"])}) for each in said["findings"])
        return HealthCheck(said["version"], tuple(findings), said["facts"])

    def list_nodes(self) -> list[NodeFacts]:
        """Return the nodes."""
        return [
            NodeFacts(
                **{
                    **each,
                    "state": NodeState(each["state"]),
                    "pools": tuple(each["pools"]),
                    "topology": tuple(each["topology"]),
                }
            )
            for each in self._ask("nodes", {})["nodes"]
        ]

    def set_drained(self, node: str, reason: str, *, drained: bool) -> None:
        """Drain or undrain a node."""
        self._ask("drain", {"node": node, "reason": reason, "drained": drained})

    def _ask(self, act: str, body: dict[str, Any]) -> Any:
        connection = http.client.HTTPConnection(self._address, timeout=self._timeout_seconds)
        try:
            connection.request("POST", f"/{act}", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise BackendUnavailable(f"{act} at {self._address}: {error!r}") from error
        finally:
            connection.close()
        if response.status == http.HTTPStatus.CONFLICT:
            raise BackendRejected(content.decode(errors="replace"))
        if response.status != http.HTTPStatus.OK:
            raise BackendUnavailable(f"{act} at {self._address}: HTTP {response.status}")
        return json.loads(content)


def _observation(answer: dict[str, Any]) -> Observation:
    return Observation(
        Presence(answer["presence"]),
        answer.get("native_state", ""),
        answer.get("native_reason", ""),
        exit_status=answer.get("exit_status"),
        phase=Phase(answer["phase"]) if answer.get("phase") else None,
        cause=Cause(answer["cause"]) if answer.get("cause") else None,
        explanation=answer.get("explanation", ""),
        nodes=tuple(answer.get("nodes", ())),
        gives_up=Obstacle(answer["gives_up"]) if answer.get("gives_up") else None,
    )
