"""A backend whose attempts live in a world that a test scripts: in this process, or behind an address.

docs/contributing/add-a-backend.md describes how to write a backend after this one.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from athanor.backends.base import (
    LOG_PART_BYTES,
    Backend,
    BackendRejected,
    BackendUnavailable,
    Cause,
    ChecksHealth,
    DrainsNodes,
    Handle,
    ListsNodes,
    ListsOurs,
    LogPart,
    Observation,
    Obstacle,
    Phase,
    Presence,
    ReplacesNodes,
    Submission,
    byte_cursor,
    log_part,
)
from athanor.backends.facts import Finding, HealthCheck, Level, NodeFacts, NodeState
from athanor.backends.fake.config import FakeConfig
from athanor.backends.fake.remote import RemoteWorld
from athanor.backends.plan import LaunchPlan
from trainer.contract import environment as names


@dataclass
class World:
    """The state of a scripted cluster, for tests.

    Each call consumes one of `lose_answers`, `away` and `empty_listings`; `fault` (see tests/backends/cases/base.py)
    and `full` last until they are reset; `listed` is the content of a stale list.

    A world with `nodes` places a submission on as many of them as it asks for, among those that are ready and not to be
    avoided, and keeps it pending while there are too few. `replacements`: requests of nodes in the place of lost ones,
    by name, node index and number; a script moves their attempt to other nodes (`placed`), or ends them
    (`ended_replacements`). `report`: what a preflight of a node prints, which then ends at its start.
    """

    running: dict[str, Submission] = field(default_factory=dict)
    finished: dict[str, int | None] = field(default_factory=dict)
    causes: dict[str, Cause] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    created: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)
    lose_answers: int = 0
    refuse: str = ""
    away: int = 0
    empty_listings: int = 0
    fault: str = ""
    full: bool = False
    gives_up: Obstacle | None = None
    listed: frozenset[str] = frozenset()
    clock_offset_seconds: float = 0.0
    calls: int = 0
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    placed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    replacements: dict[tuple[str, int, int], Submission] = field(default_factory=dict)
    ended_replacements: set[tuple[str, int, int]] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    report: str = ""
    _began: dict[str, float] = field(default_factory=dict)

    def finish(self, backend_name: str, exit_status: int | None = 0) -> None:
        """End a running attempt with this exit status."""
        del self.running[backend_name]
        self.pending.discard(backend_name)
        self.finished[backend_name] = exit_status

    def end(self, backend_name: str, cause: Cause) -> None:
        """End it without a meaningful exit status."""
        self.finish(backend_name, None)
        self.causes[backend_name] = cause

    def forget(self, backend_name: str) -> None:
        """Remove all traces of an attempt."""
        self.running.pop(backend_name, None)
        self.finished.pop(backend_name, None)

    def submit(self, submission: Submission) -> None:
        """Start an attempt unless it exists."""
        if self.refuse:
            raise BackendRejected(self.refuse)
        self._call()
        name = submission.backend_name
        replaced = _replaced(submission)
        if replaced is not None:
            self.replacements.setdefault((name, *replaced), submission)
        elif name not in self.running and name not in self.finished:
            self.running[name] = submission
            self.pending.add(name)
            self._settle()
        if self.lose_answers:
            self.lose_answers -= 1
            raise BackendUnavailable("the answer was lost")
        self._answer()

    def observe(self, names: Sequence[str]) -> dict[str, Observation]:
        """Return the observation of each name, as the scripted fault has it."""
        self._call()
        self._settle()
        if self.empty_listings:
            self.empty_listings -= 1
            return {name: Observation(Presence.ABSENT) for name in names}
        if self.fault == "empty_list":
            return {name: Observation(Presence.ABSENT) for name in names}
        stale = self.fault == "stale_list"
        answers = {
            name: Observation(Presence.ABSENT) if stale and name not in self.listed else self._observe(name)
            for name in names
        }
        self._answer()
        return answers

    def cancel(self, name: str, *, force: bool) -> None:
        """Record the request; end an attempt that is still pending."""
        self._call()
        self.cancelled.append(name)
        if name in self.pending:
            self.pending.discard(name)
            self.end(name, Cause.CANCELLED)
        self._answer()

    def logs(self, name: str, cursor: str | None) -> LogPart:
        """Return a part of an attempt's output."""
        self._call()
        begin = byte_cursor(cursor)
        content = self.written.get(name, "").encode()[begin : begin + LOG_PART_BYTES]
        self._answer()
        return log_part(content, begin)

    def list_ours(self) -> frozenset[str]:
        """Return the names of the running attempts, as the scripted fault has it."""
        self._call()
        self._answer()
        if self.fault == "empty_list":
            return frozenset()
        return self.listed if self.fault == "stale_list" else frozenset(self.running)

    def check_health(self) -> HealthCheck:
        """Return the scripted findings."""
        try:
            self._call()
        except BackendUnavailable as error:
            return HealthCheck(
                "", (Finding("answer", Level.ERROR, str(error), "wait until it answers, then check again"),)
            )
        found = self.findings or [Finding("answer", Level.OK, "it answers")]
        return HealthCheck("1", tuple(found), {"kind": "fake"})

    def list_nodes(self) -> list[NodeFacts]:
        """Return the nodes with their used slots."""
        self._call()
        self._answer()
        return [self._with_use(facts) for facts in self.nodes.values()]

    def set_drained(self, node: str, reason: str, *, drained: bool) -> None:
        """Drain or undrain a node. Raise BackendRejected for an unknown node."""
        self._call()
        if node not in self.nodes:
            raise BackendRejected(f"there is no node {node!r}")
        facts = self.nodes[node]
        if drained:
            self.nodes[node] = replace(facts, state=NodeState.DRAINED, reason=reason)
        elif facts.state is NodeState.DRAINED:
            self.nodes[node] = replace(facts, state=NodeState.READY, reason="")
        self._answer()

    def _with_use(self, facts: NodeFacts) -> NodeFacts:
        """Return the node with a used slot for each of our processes beside those that its script sets."""
        ours = sum(
            _placement(self.running[name])[1] for name in self.running if facts.name in self.placed.get(name, ())
        )
        return replace(facts, slots_used=min(facts.slots, facts.slots_used + ours))

    def _place(self, name: str) -> bool:
        """Choose the attempt's nodes. Return False if there are too few."""
        wanted, _, avoided = _placement(self.running[name])
        only = _only_node(self.running[name])
        ready = [facts.name for facts in self.nodes.values() if facts.state is NodeState.READY]
        fit = [node for node in ready if node not in avoided and only in ("", node)]
        if len(fit) < wanted:
            return False
        self.placed[name] = tuple(fit[:wanted])
        return True

    def _start(self, name: str) -> None:
        self.created.append(name)
        self._began[name] = time.monotonic()
        self.written[name] = "hello from the program \u00e9\n"
        if self.report and names.PREFLIGHT_RANKS in self.running[name].environment:
            self.written[name] = f"{self.report}\n"
            self.finish(name)

    def _settle(self) -> None:
        if self.full:
            return
        for name in sorted(self.pending):
            if not self.nodes or self._place(name):
                self.pending.discard(name)
                self._start(name)

    def _observe(self, name: str) -> Observation:
        if name in self.pending:
            said = "It waits for room in the world."
            return Observation(
                Presence.PRESENT, "waiting", "full", phase=Phase.PENDING, explanation=said, gives_up=self.gives_up
            )
        if name in self.running:
            # A world reports durations by its own clock; an offset of this clock changes none of them.
            now = time.monotonic() + self.clock_offset_seconds
            seconds = now - (self._began[name] + self.clock_offset_seconds) if name in self._began else None
            replacements = frozenset(each[1:] for each in self.replacements if each[0] == name)
            ended = {each[1:] for each in self.ended_replacements if each[0] == name}
            return Observation(
                Presence.PRESENT, "running", phase=Phase.RUNNING, running_seconds=seconds,
                nodes=self.placed.get(name, ()), replacements=replacements - ended,
            )  # fmt: skip
        if name in self.finished:
            cause = self.causes.get(name)
            status, nodes = self.finished[name], self.placed.get(name, ())
            return Observation(Presence.FINISHED, cause or "exited", exit_status=status, cause=cause, nodes=nodes)
        return Observation(Presence.ABSENT)

    def _call(self) -> None:
        self.calls += 1
        if self.away:
            self.away -= 1
            raise BackendUnavailable("the backend is away")
        if self.fault in ("error", "timeout"):
            raise BackendUnavailable(f"the backend has trouble: {self.fault}")

    def _answer(self) -> None:
        if self.fault == "lost_answer":
            raise BackendUnavailable("the answer was lost")


def _placement(submission: Submission) -> tuple[int, int, frozenset[str]]:
    """Return the number of nodes, the slots of each, and the nodes to avoid."""
    asked = submission.payload
    assert isinstance(asked, dict)
    return asked["nodes"], asked["slots_per_node"], frozenset(asked["avoid_nodes"])


def _only_node(submission: Submission) -> str:
    asked = submission.payload
    assert isinstance(asked, dict)
    return str(asked.get("only_node", ""))


def _replaced(submission: Submission) -> tuple[int, int] | None:
    """Return node index and number of a request of one node in the place of a lost one."""
    asked = submission.payload
    assert isinstance(asked, dict)
    if "replaces" not in asked:
        return None
    node_index, number = asked["replaces"]
    return node_index, number


WORLDS: dict[str, World] = {}


class FakeBackend(Backend, ListsOurs):
    """A backend of a scripted world. Keyword arguments: the fields of FakeConfig."""

    configuration = FakeConfig

    def __init__(self, world: str = "default", **config: object) -> None:
        chosen = FakeConfig.model_validate({"world": world, **config})
        self._profile = chosen.profile
        self._world: World | RemoteWorld = (
            RemoteWorld(chosen.address, chosen.timeout_seconds)
            if chosen.address
            else WORLDS.setdefault(chosen.world, World())
        )

    def render(self, plan: LaunchPlan) -> Submission:
        """Return the plan as text, with what the world needs as payload."""
        environment = {**self._profile.variables(plan.accelerator, plan.nodes), **plan.environment}
        shown = "".join(f"\n{name}={value!r}" for name, value in sorted(environment.items()))
        shown += "".join(f"\n{name}=<secret>" for name in sorted(plan.secrets))
        asked = {
            "nodes": plan.nodes + plan.spare_nodes,
            "slots_per_node": plan.processes_per_node,
            "avoid_nodes": list(plan.avoid_nodes),
            **({"only_node": plan.only_node} if plan.only_node else {}),
        }
        text = f"fake {plan.attempt_id}\n{json.dumps(asked)}{shown}"
        return Submission(plan.backend_name, text, environment, plan.secrets, asked)

    def submit(self, submission: Submission) -> Handle:
        """Submit to the world."""
        self._world.submit(submission)
        return Handle(submission.backend_name, submission.backend_name)

    def observe(self, handles: Sequence[Handle]) -> dict[Handle, Observation]:
        """Ask the world, in one call."""
        answers = self._world.observe([handle.backend_name for handle in handles])
        return {handle: answers[handle.backend_name] for handle in handles}

    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        """Cancel in the world."""
        self._world.cancel(handle.backend_name, force=force)

    def logs(self, handle: Handle, cursor: str | None = None) -> LogPart:
        """Read from the world."""
        return self._world.logs(handle.backend_name, cursor)

    def list_ours(self) -> frozenset[str]:
        """List what runs in the world."""
        return self._world.list_ours()


class FakeClusterBackend(FakeBackend, ChecksHealth, ListsNodes, DrainsNodes, ReplacesNodes):
    """A scripted world with a health check and nodes that can be drained and replaced."""

    def check_health(self) -> HealthCheck:
        """Return the world's health check."""
        return self._world.check_health()

    def nodes(self) -> list[NodeFacts]:
        """Return the world's nodes."""
        return self._world.list_nodes()

    def drain(self, node: str, reason: str) -> None:
        """Drain a node of the world."""
        self._world.set_drained(node, reason, drained=True)

    def render_replacement(self, plan: LaunchPlan, node_index: int, number: int) -> Submission:
        """Return the plan for one node, with its index and the number of the request."""
        rendered = self.render(plan)
        assert isinstance(rendered.payload, dict)
        asked = {**rendered.payload, "nodes": 1, "replaces": [node_index, number]}
        return replace(rendered, text=f"fake {plan.attempt_id}\n{json.dumps(asked)}", payload=asked)

    def undrain(self, node: str) -> None:
        """Undrain a node of the world."""
        self._world.set_drained(node, "", drained=False)
