"""The scripted backend: behaves as a real one, without running programs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from athanor.backends.base import Cause, Handle
from athanor.backends.facts import NodeFacts, NodeState
from athanor.backends.fake.backend import WORLDS, FakeClusterBackend, World
from tests.backends.cases.base import Case, Fault


class FakeCase(Case):
    most_nodes = 4

    def __init__(self, world: World) -> None:
        self.world = world
        names = [f"n{number}" for number in range(self.most_nodes)]
        world.nodes = {name: NodeFacts(name, NodeState.READY, slots=8, cpus=8) for name in names}
        self.backend = FakeClusterBackend("conformance")

    def finish(self, handle: Handle, status: int = 0) -> None:
        self.world.finish(handle.backend_name, status)

    def starts(self, handle: Handle) -> int:
        return self.world.created.count(handle.backend_name)

    def faulty(self, fault: Fault) -> AbstractContextManager[None] | None:
        return self._faulty(fault)

    @contextmanager
    def _faulty(self, fault: Fault) -> Iterator[None]:
        self.world.listed = frozenset(self.world.running)
        self.world.fault = fault.value
        yield
        self.world.fault = ""

    @contextmanager
    def full(self) -> Iterator[None]:
        self.world.full = True
        yield
        self.world.full = False

    def lose_node(self, handle: Handle) -> bool:
        self.world.end(handle.backend_name, Cause.NODE_LOST)
        return True

    def preempt(self, handle: Handle) -> bool:
        self.world.end(handle.backend_name, Cause.PREEMPTED)
        return True

    def cancel_behind_our_back(self, handle: Handle) -> bool:
        self.world.end(handle.backend_name, Cause.CANCELLED)
        return True

    @contextmanager
    def skew_clock(self, seconds: float) -> Iterator[None]:
        self.world.clock_offset_seconds = seconds
        yield
        self.world.clock_offset_seconds = 0.0

    def many(self, count: int) -> list[Handle]:
        return [self.backend.submit(self.submission()) for _ in range(count)]

    def calls(self) -> int:
        return self.world.calls


@pytest.fixture
def fake() -> Iterator[FakeCase]:
    world = WORLDS.setdefault("conformance", World())
    yield FakeCase(world)
    del WORLDS["conformance"]
