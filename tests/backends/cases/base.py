"""What the conformance suite needs of a kind of backend. A new kind adds a module here with a subclass of `Case` and a
fixture, and a line in tests/backends/conftest.py."""

import uuid
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Any

from athanor.backends.base import Backend, Handle, Observation, Presence, Submission
from athanor.backends.plan import LaunchPlan, backend_name
from deploy.local.handle import wait_until

SECRET = "planted-secret"

# What runs instead of the agent. It writes its variables and a line, then notes its start (so that a test that has seen
# the start can read both), and runs until a file `finish-NAME` or `finish` appears, which holds the exit status.
PROGRAM = """
import json, os, sys, time
root = sys.argv[1]
name = os.environ["CONFORMANCE_NAME"]
index = os.environ.get("ATHANOR_NODE_INDEX", "0")
with open(os.path.join(root, "environment-" + name + "-" + index), "w") as file:
    json.dump(dict(os.environ), file)
print("hello from the program \\u00e9", flush=True)
with open(os.path.join(root, "starts-" + name), "a") as starts:
    starts.write("x")
while True:
    for file in ("finish-" + name, "finish"):
        if os.path.exists(os.path.join(root, file)):
            sys.exit(int(open(os.path.join(root, file)).read() or 0))
    time.sleep(0.02)
"""


class Fault(StrEnum):
    """Faults that a case can inject into the backend's responses."""

    LOST_ANSWER = "lost_answer"  # the call succeeds there, its answer never comes
    ERROR = "error"  # it is refused as by a server in trouble (5xx, a command that fails), nothing is done
    TIMEOUT = "timeout"  # no answer at all, nothing is done
    SLOW = "slow"  # it succeeds, late but in time
    DOUBLED = "doubled"  # it reaches the backend twice
    EMPTY_LIST = "empty_list"  # what lists has lost its memory for a moment
    STALE_LIST = "stale_list"  # listings return the state from before the fault


UNANSWERED = frozenset({Fault.LOST_ANSWER, Fault.ERROR, Fault.TIMEOUT})
FORGETFUL = frozenset({Fault.EMPTY_LIST, Fault.STALE_LIST})


class Case(ABC):
    """One backend of a kind, set up so that its submissions run PROGRAM, with `signals` for its folder."""

    backend: Backend
    signals: Path
    most_nodes = 1

    def plan(self, **changes: Any) -> LaunchPlan:
        identifier = f"att_{uuid.uuid4().hex}"
        name = backend_name(identifier)
        facts: dict[str, Any] = {
            "attempt_id": identifier,
            "backend_name": name,
            "nodes": 1,
            "processes_per_node": 1,
            "accelerator": "cpu",
            "time_limit_seconds": 3600,
            "environment": {"ATHANOR_AGENT_URL": "http://127.0.0.1:1", "CONFORMANCE_NAME": name},
            "secrets": {"ATHANOR_ATTEMPT_TOKEN": SECRET},
            "job_id": "job_01J00000000000000000000000",
            "job_name": "conformance",
            "team": "research",
            "project": "default",
            "pool": "cpu",
        }
        return LaunchPlan(**{**facts, **changes})

    def submission(self, **changes: Any) -> Submission:
        return self.backend.render(self.plan(**changes))

    def observe(self, handle: Handle) -> Observation:
        return self.backend.observe([handle])[handle]

    def until(self, handle: Handle, presence: Presence, seconds: float = 30) -> Observation:
        seen: list[Observation] = []

        def is_so() -> bool:
            seen.append(self.observe(handle))
            return seen[-1].presence is presence

        wait_until(is_so, f"{handle} is {presence}", seconds)
        return seen[-1]

    # What a real program does; a scripted backend overrides these.

    def finish(self, handle: Handle, status: int = 0) -> None:
        """Let all programs of a submission end with this status."""
        draft = self.signals / f"draft-{handle.backend_name}"
        draft.write_text(str(status))
        draft.rename(self.signals / f"finish-{handle.backend_name}")

    def starts(self, handle: Handle) -> int:
        """Return how often a program was started for a submission: once per node."""
        file = self.signals / f"starts-{handle.backend_name}"
        return len(file.read_text()) if file.exists() else 0

    # What a kind may be able to do; None or False: it cannot happen there, and the test says why it is left out.

    @abstractmethod
    def faulty(self, fault: Fault) -> AbstractContextManager[None] | None:
        """Inject the fault into each call of `backend`. None if there is no connection to inject it into."""

    def full(self) -> AbstractContextManager[None] | None:
        """Make the cluster full: new submissions wait in its queue."""
        return None

    def lose_node(self, handle: Handle) -> bool:
        """Remove a machine on which it runs, immediately and without notice."""
        return False

    def preempt(self, handle: Handle) -> bool:
        """Preempt a submission by one of higher priority."""
        return False

    def cancel_behind_our_back(self, handle: Handle) -> bool:
        """Cancel a submission by the cluster's own tools."""
        return False

    def skew_clock(self, seconds: float) -> AbstractContextManager[None] | None:
        """Offset the backend's clock by this much."""
        return None

    def many(self, count: int) -> list[Handle] | None:
        """Create this many live submissions. None if one machine cannot."""
        return None

    def calls(self) -> int | None:
        """Return the number of calls made to the system behind the backend."""
        return None
