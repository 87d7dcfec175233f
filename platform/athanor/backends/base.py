"""The interface of every backend: five calls, and capabilities that a backend declares by inheriting them."""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from pydantic import BaseModel

from athanor.backends.facts import HealthCheck, NodeFacts
from athanor.backends.plan import LaunchPlan


class Presence(StrEnum):
    """Not knowing is an answer of its own: it never ends a job."""

    PRESENT = "present"
    FINISHED = "finished"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """How far what is PRESENT has come on its backend."""

    PENDING = "pending"  # waits in the backend's own queue
    STARTING = "starting"  # has its nodes: images are pulled, prologs run
    RUNNING = "running"  # all of its processes were started
    ENDING = "ending"  # they are being ended, or cleaned up after


class Cause(StrEnum):
    """Why something ended according to the backend, where the exit status does not show it."""

    PREEMPTED = "preempted"
    SPOT_RECLAIMED = "spot_reclaimed"
    NODE_LOST = "node_lost"
    OUT_OF_MEMORY = "out_of_memory"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"  # by somebody, there
    LAUNCH_FAILED = "launch_failed"  # its nodes could not start it: no image, a prolog that failed


@dataclass(frozen=True)
class Handle:
    """What identifies one submitted attempt: our name, and the backend's own id when it gave one."""

    backend_name: str
    backend_id: str = ""


@dataclass(frozen=True)
class Observation:
    """The backend's observation of one attempt. Times are durations by its own clock, which may differ from ours.

    `native_state` and `native_reason` are its words; `explanation` is a sentence for people, empty where nothing is
    known beyond them. `exit_status` and `cause` only when FINISHED and known; `phase` only when PRESENT.
    `restarts`: how often the backend itself restarted it, which it must not do.
    """

    presence: Presence
    native_state: str = ""
    native_reason: str = ""
    exit_status: int | None = None
    phase: Phase | None = None
    cause: Cause | None = None
    explanation: str = ""
    running_seconds: float | None = None
    starts_in_seconds: float | None = None
    seconds_left: float | None = None
    nodes: tuple[str, ...] = ()
    restarts: int = 0


@dataclass(frozen=True)
class Submission:
    """Exactly what is handed to the backend. `text` is what a person is shown; secrets are only in `secrets`.

    `payload` is what the backend's own `submit` reads besides: a command, objects.
    """

    backend_name: str
    text: str
    environment: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)
    payload: object = field(default=None, repr=False)


LOG_PART_BYTES = 256 * 1024


@dataclass(frozen=True)
class LogPart:
    """What a backend kept of the processes' own output, from a cursor on. `cursor` asks for what comes after."""

    text: str
    cursor: str


def log_part(content: bytes, begin: int) -> LogPart:
    """What was read of a log from byte `begin` on; a letter that is cut off at its end is left for the next part."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(content)
    kept, _ = decoder.getstate()
    return LogPart(text, str(begin + len(content) - len(kept)))


def byte_cursor(cursor: str | None) -> int:
    """Of a log that is read by its bytes. Raises ValueError."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20):
        raise ValueError(f"{cursor!r} is no place in a log")
    return int(cursor)


class BackendUnavailable(Exception):
    """The backend did not answer. Nothing is known and nothing may be concluded; try again."""


class BackendRejected(Exception):
    """The backend refused this submission for good; the message says why."""


class Backend(ABC):
    """No call takes longer than 15 seconds: what is not answered by then is BackendUnavailable. Leases count on it.

    An instance is made for a few calls by one thread and then dropped; what is dear to set up (a connection) is kept
    by the backend's module, for all instances of the same configuration.

    The constructor takes the fields of `configuration` as keyword arguments and raises pydantic's ValidationError for
    what does not fit; it asks nobody anything.
    """

    configuration: ClassVar[type[BaseModel]]

    @abstractmethod
    def render(self, plan: LaunchPlan) -> Submission:
        """Pure: the same plan gives the same submission. Raises BackendRejected for what can never run here."""

    @abstractmethod
    def submit(self, submission: Submission) -> Handle:
        """Idempotent by `backend_name`: what exists, alive or finished, is adopted, never made again."""

    @abstractmethod
    def observe(self, handles: Sequence[Handle]) -> dict[Handle, Observation]:
        """One answer for each handle, from as few calls to the backend as it allows."""

    @abstractmethod
    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        """Ask the processes to end (they may still save a checkpoint), or `force` them. Idempotent; does not wait."""

    @abstractmethod
    def logs(self, handle: Handle, cursor: str | None = None) -> LogPart:
        """At most LOG_PART_BYTES of what the processes wrote, from the beginning or from where a part ended; empty when
        there is no more. Raises ValueError for a cursor that was never given."""


class ListsOurs(ABC):
    """A capability: the backend can say what it runs for us, asked for nothing in particular."""

    @abstractmethod
    def list_ours(self) -> frozenset[str]:
        """The names of all that lives there under our naming; what has ended may be left out."""


class ChecksHealth(ABC):
    """A capability: the backend can be examined, for those who set it up."""

    @abstractmethod
    def check_health(self) -> HealthCheck:
        """What there is and what is wrong with it, each with a remedy. A backend that does not answer is a finding."""


class ListsNodes(ABC):
    """A capability: the backend knows its nodes."""

    @abstractmethod
    def nodes(self) -> list[NodeFacts]:
        """All that jobs of ours may run on."""


class DrainsNodes(ABC):
    """A capability: a node can be drained; running jobs continue."""

    @abstractmethod
    def drain(self, node: str, reason: str) -> None:
        """Idempotent."""

    @abstractmethod
    def undrain(self, node: str) -> None:
        """Idempotent; a node that is not drained stays as it is."""


class SyncsTeams(ABC):
    """A capability: teams have a counterpart there (an account, a namespace) that can be made to agree."""

    @abstractmethod
    def sync_teams(self, teams: Sequence[str]) -> list[str]:
        """Makes what is missing and returns a line for each change; removes nothing."""
