"""The interface of every backend: five calls, and capabilities that a backend declares by inheriting from them."""

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
    """Whether an attempt exists on its backend. UNKNOWN is an answer of its own: it never ends a job.

    ABSENT requires that the backend was asked and denied it; an empty list, a cache or an error is UNKNOWN.
    """

    PRESENT = "present"
    FINISHED = "finished"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """The progress of an attempt that is PRESENT on its backend."""

    PENDING = "pending"  # waits in the backend's own queue
    STARTING = "starting"  # has its nodes: images are pulled, prologs run
    RUNNING = "running"  # all of its processes were started
    ENDING = "ending"  # they are being ended, or cleaned up after


class Cause(StrEnum):
    """Why an attempt ended according to the backend, if the exit status does not show it."""

    PREEMPTED = "preempted"
    SPOT_RECLAIMED = "spot_reclaimed"
    NODE_LOST = "node_lost"
    OUT_OF_MEMORY = "out_of_memory"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"  # by somebody, there
    DELETED = "deleted"  # a part of it, by somebody, there
    LAUNCH_FAILED = "launch_failed"  # its nodes could not start it: a missing program, a prolog that failed


class Obstacle(StrEnum):
    """Why a backend expects no start of an attempt."""

    CANNOT_START = "cannot_start"  # something keeps its processes from being started, such as a missing image
    NO_ROOM = "no_room"  # no nodes have been found for it in time


@dataclass(frozen=True)
class Handle:
    """The identity of one submitted attempt: our name, and the backend's own id if it assigned one."""

    backend_name: str
    backend_id: str = ""


@dataclass(frozen=True)
class Observation:
    """The backend's observation of one attempt.

    `native_state` and `native_reason` are the backend's own terms; `explanation` is a sentence for users, empty if
    nothing more is known. `exit_status` and `cause` are set only when FINISHED and known; `phase` only when PRESENT.
    Durations (`running_seconds`, `starts_in_seconds`, `seconds_left`) are measured by the backend's clock, so that
    clocks may differ; None is unknown. `nodes` are names as in `NodeFacts`. `restarts`: how often the backend itself
    restarted the attempt, which it must not do. `replacements`: node index and number of each replacement of a node
    (`ReplacesNodes`) that waits or runs; None is unknown. `gives_up`: why the backend expects no start of an attempt
    that is PRESENT and has not started; None while it may start.
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
    replacements: frozenset[tuple[int, int]] | None = None
    gives_up: Obstacle | None = None


@dataclass(frozen=True)
class Submission:
    """What is handed to the backend. `text` is shown to users; secret values are only in `secrets`.

    `payload` is further input for the same backend's `submit`, such as a command or objects.
    """

    backend_name: str
    text: str
    environment: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)
    payload: object = field(default=None, repr=False)


LOG_PART_BYTES = 256 * 1024


@dataclass(frozen=True)
class LogPart:
    """A part of the processes' output. `cursor` is the position after it: pass it to read on."""

    text: str
    cursor: str


def log_part(content: bytes, begin: int) -> LogPart:
    """Return the part of a log that was read from byte `begin` on.

    A UTF-8 character that is cut off at its end is left for the next part.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(content)
    kept, _ = decoder.getstate()
    return LogPart(text, str(begin + len(content) - len(kept)))


def byte_cursor(cursor: str | None) -> int:
    """Return the byte offset of a cursor; 0 for None. Raise ValueError for what is not an offset."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20):
        raise ValueError(f"{cursor!r} is no place in a log")
    return int(cursor)


class BackendUnavailable(Exception):
    """The backend did not answer. Nothing may be concluded from it; the call is repeated later."""


class BackendRejected(Exception):
    """The backend refused permanently; the message says why and what to change."""


class Backend(ABC):
    """One kind of cluster, configured for one cluster.

    No call takes longer than 15 seconds: a backend that does not answer in time raises BackendUnavailable. The leases
    of the callers depend on it.

    An instance is used for a few calls by one thread and then dropped; expensive resources (a connection, a watch) are
    stored in the backend's module and shared by all instances of the same configuration.

    The constructor takes the fields of `configuration` as keyword arguments and raises pydantic's ValidationError for
    invalid ones; it does not contact the cluster.
    """

    configuration: ClassVar[type[BaseModel]]

    @abstractmethod
    def render(self, plan: LaunchPlan) -> Submission:
        """Return what `submit` will hand over. Pure: the same plan gives the same submission.

        Raise BackendRejected for a plan that can never run here.
        """

    @abstractmethod
    def submit(self, submission: Submission) -> Handle:
        """Start the attempt and return its handle. Idempotent by `backend_name`, also after the attempt ended.

        An existing object, alive or finished, is adopted and never created again, also if an earlier answer was lost.
        Raise BackendUnavailable if it is unknown whether it was started, BackendRejected for a permanent refusal.
        """

    @abstractmethod
    def observe(self, handles: Sequence[Handle]) -> dict[Handle, Observation]:
        """Return one observation for each handle, with as few calls to the cluster as possible.

        There may be thousands of handles. Raise BackendUnavailable if nothing is known of any of them.
        """

    @abstractmethod
    def cancel(self, handle: Handle, *, force: bool = False) -> None:
        """Ask the processes to end, so that they may save a checkpoint; with `force`, kill them.

        Idempotent; does not wait for the end. An attempt that does not exist is no error.
        """

    @abstractmethod
    def logs(self, handle: Handle, cursor: str | None = None) -> LogPart:
        """Return at most LOG_PART_BYTES of the processes' output from `cursor` on; None starts at the beginning.

        The text is empty when there is no more. Raise ValueError for a cursor that no part had.
        """


class ListsOurs(ABC):
    """Capability: the backend can list the attempts that it runs for us."""

    @abstractmethod
    def list_ours(self) -> frozenset[str]:
        """Return the names of all live objects with our naming; ended ones may be omitted."""


class ChecksHealth(ABC):
    """Capability: the backend can check its cluster, for the administrators who set it up."""

    @abstractmethod
    def check_health(self) -> HealthCheck:
        """Return what was checked and what is wrong, each with a remedy.

        A cluster that does not answer is a finding and not an exception.
        """


class ListsNodes(ABC):
    """Capability: the backend knows its nodes."""

    @abstractmethod
    def nodes(self) -> list[NodeFacts]:
        """Return all nodes that our jobs may run on."""


class DrainsNodes(ABC):
    """Capability: a node can be drained; its running jobs continue."""

    @abstractmethod
    def drain(self, node: str, reason: str) -> None:
        """Stop new work on a node. Idempotent. Raise BackendRejected for an unknown node."""

    @abstractmethod
    def undrain(self, node: str) -> None:
        """Accept new work again. Idempotent; a node that is not drained is unchanged."""


class ReplacesNodes(ABC):
    """Capability: a node that the cluster has removed from an attempt can be replaced by another one.

    What runs for a replacement belongs to the attempt: `cancel` ends it too, its node is in `Observation.nodes` while
    it runs, and `Observation.replacements` has it until it has ended. It decides nothing about the attempt's presence,
    phase or end, but the attempt does not end while an agent of a replacement runs.
    """

    @abstractmethod
    def render_replacement(self, plan: LaunchPlan, node_index: int, number: int) -> Submission:
        """Return what `submit` will hand over to run the agent of this node index on another node. Pure.

        `plan` is that of the attempt, with the time that is left and the nodes to avoid now. `submit` is idempotent for
        each attempt, node index and `number`. Raise BackendRejected for what can never run here.
        """


class SyncsTeams(ABC):
    """Capability: teams have a counterpart on the cluster (an account, a namespace)."""

    @abstractmethod
    def sync_teams(self, teams: Sequence[str]) -> list[str]:
        """Create missing counterparts and return a line for each change. Removes nothing."""
