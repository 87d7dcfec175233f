"""Keeps attempts in memory, shared by all instances with the same `world` name."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from athanor.backends.base import (
    Backend,
    BackendRejected,
    BackendUnavailable,
    Handle,
    Observation,
    Presence,
    Submission,
)
from athanor.backends.plan import LaunchPlan


@dataclass
class World:
    """What a test scripts and inspects. Faults are consumed one a call."""

    running: dict[str, Submission] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    lose_answers: int = 0
    refuse: str = ""
    away: int = 0
    empty_listings: int = 0

    def finish(self, backend_name: str, exit_status: int = 0) -> None:
        del self.running[backend_name]
        self.finished[backend_name] = exit_status

    def forget(self, backend_name: str) -> None:
        self.running.pop(backend_name, None)
        self.finished.pop(backend_name, None)


WORLDS: dict[str, World] = {}


class FakeBackend(Backend):
    def __init__(self, world: str = "default") -> None:
        self._world = WORLDS.setdefault(world, World())

    def render(self, plan: LaunchPlan) -> Submission:
        return Submission(plan.backend_name, f"fake {plan.attempt_id}", ("fake",), plan.environment, plan.secrets)

    def submit(self, submission: Submission) -> Handle:
        world = self._world
        if world.refuse:
            raise BackendRejected(world.refuse)
        self._maybe_away()
        name = submission.backend_name
        if name not in world.running and name not in world.finished:
            world.running[name] = submission
            world.created.append(name)
        if world.lose_answers:
            world.lose_answers -= 1
            raise BackendUnavailable("the answer was lost")
        return Handle(name, name)

    def observe(self, handles: Sequence[Handle]) -> dict[Handle, Observation]:
        self._maybe_away()
        if self._world.empty_listings:
            self._world.empty_listings -= 1
            return {handle: Observation(Presence.ABSENT) for handle in handles}
        return {handle: self._look(handle.backend_name) for handle in handles}

    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        self._maybe_away()
        self._world.cancelled.append(handle.backend_name)

    def _look(self, name: str) -> Observation:
        if name in self._world.running:
            return Observation(Presence.PRESENT, "running")
        if name in self._world.finished:
            return Observation(Presence.FINISHED, "exited", exit_status=self._world.finished[name])
        return Observation(Presence.ABSENT)

    def _maybe_away(self) -> None:
        if self._world.away:
            self._world.away -= 1
            raise BackendUnavailable("the backend is away")
