"""A backend whose attempts live in a world that a test scripts: in this process, or behind an address."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from athanor.backends.base import (
    Backend,
    BackendRejected,
    BackendUnavailable,
    Handle,
    ListsOurs,
    Observation,
    Presence,
    Submission,
)
from athanor.backends.fake.remote import RemoteWorld
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

    def submit(self, submission: Submission) -> None:
        if self.refuse:
            raise BackendRejected(self.refuse)
        self._maybe_away()
        name = submission.backend_name
        if name not in self.running and name not in self.finished:
            self.running[name] = submission
            self.created.append(name)
        if self.lose_answers:
            self.lose_answers -= 1
            raise BackendUnavailable("the answer was lost")

    def look(self, names: Sequence[str]) -> dict[str, Observation]:
        self._maybe_away()
        if self.empty_listings:
            self.empty_listings -= 1
            return {name: Observation(Presence.ABSENT) for name in names}
        return {name: self._look(name) for name in names}

    def cancel(self, name: str, *, force: bool) -> None:
        self._maybe_away()
        self.cancelled.append(name)

    def list_ours(self) -> frozenset[str]:
        self._maybe_away()
        return frozenset(self.running)

    def _look(self, name: str) -> Observation:
        if name in self.running:
            return Observation(Presence.PRESENT, "running")
        if name in self.finished:
            return Observation(Presence.FINISHED, "exited", exit_status=self.finished[name])
        return Observation(Presence.ABSENT)

    def _maybe_away(self) -> None:
        if self.away:
            self.away -= 1
            raise BackendUnavailable("the backend is away")


WORLDS: dict[str, World] = {}


class FakeBackend(Backend, ListsOurs):
    """All instances with the same `world` name share it; with an `address`, the world is what answers there."""

    def __init__(self, world: str = "default", address: str = "", timeout_seconds: float = 5.0) -> None:
        self._world: World | RemoteWorld = (
            RemoteWorld(address, timeout_seconds) if address else WORLDS.setdefault(world, World())
        )

    def render(self, plan: LaunchPlan) -> Submission:
        return Submission(plan.backend_name, f"fake {plan.attempt_id}", ("fake",), plan.environment, plan.secrets)

    def submit(self, submission: Submission) -> Handle:
        self._world.submit(submission)
        return Handle(submission.backend_name, submission.backend_name)

    def observe(self, handles: Sequence[Handle]) -> dict[Handle, Observation]:
        answers = self._world.look([handle.backend_name for handle in handles])
        return {handle: answers[handle.backend_name] for handle in handles}

    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        self._world.cancel(handle.backend_name, force=force)

    def list_ours(self) -> frozenset[str]:
        return self._world.list_ours()
