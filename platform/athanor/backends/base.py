"""The interface of every backend, and what it may answer."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from athanor.backends.plan import LaunchPlan


class Presence(StrEnum):
    """Not knowing is an answer of its own: it never ends a job."""

    PRESENT = "present"
    FINISHED = "finished"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Handle:
    """What identifies one submitted attempt: our name, and the backend's own id when it gave one."""

    backend_name: str
    backend_id: str = ""


@dataclass(frozen=True)
class Observation:
    """What the backend says of one attempt. `exit_status` only when FINISHED and known."""

    presence: Presence
    native_state: str = ""
    native_reason: str = ""
    exit_status: int | None = None


@dataclass(frozen=True)
class Submission:
    """Exactly what is handed to the backend. `text` is what a person is shown; secrets are only in `secrets`."""

    backend_name: str
    text: str
    command: tuple[str, ...]
    environment: dict[str, str]
    secrets: dict[str, str] = field(repr=False)


class BackendUnavailable(Exception):
    """The backend did not answer. Nothing is known and nothing may be concluded; try again."""


class BackendRejected(Exception):
    """The backend refused this submission for good; the message says why."""


class Backend(ABC):
    """No call takes longer than 15 seconds: what is not answered by then is BackendUnavailable. Leases count on it."""

    @abstractmethod
    def render(self, plan: LaunchPlan) -> Submission:
        """Pure: the same plan gives the same submission."""

    @abstractmethod
    def submit(self, submission: Submission) -> Handle:
        """Idempotent by `backend_name`: what exists, alive or finished, is adopted, never made again."""

    @abstractmethod
    def observe(self, handles: Sequence[Handle]) -> dict[Handle, Observation]:
        """One answer for each handle, from as few calls to the backend as it allows."""

    @abstractmethod
    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        """Ask the processes to end (they may still save a checkpoint), or `force` them. Idempotent; does not wait."""


class ListsOurs(ABC):
    """A capability: the backend can say what it runs for us, asked for nothing in particular."""

    @abstractmethod
    def list_ours(self) -> frozenset[str]:
        """The names of all that lives there under our naming; what has ended may be left out."""
