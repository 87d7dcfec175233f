"""What the backend asks of a cluster, however it is reached."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from athanor.backends.facts import NodeFacts
from athanor.backends.slurm.parse import SlurmJob
from athanor.backends.slurm.script import JobRequest
from athanor.backends.slurm.transport import Deadline, Transport


class SlurmClient(ABC):
    """Each call raises BackendUnavailable when no answer came, BackendRejected for a refusal that is final."""

    files: Transport
    """Where programs find the log directory."""

    @abstractmethod
    def jobs(self, deadline: Deadline, name: str | None = None) -> AbstractContextManager[Iterator[SlurmJob]]:
        """All that Slurm still knows of us, in one call; or what has this name."""

    @abstractmethod
    def accounted(self, names: Sequence[str], deadline: Deadline) -> Iterable[SlurmJob]:
        """What the accounting knows of these names; nothing where there is none."""

    @abstractmethod
    def submit(self, asked: JobRequest, variables: Mapping[str, str], deadline: Deadline) -> int:
        """The number of the job of this name that there is or was, whatever remembers it, or of a new one."""

    @abstractmethod
    def cancel(self, name: str, *, force: bool, deadline: Deadline) -> None:
        """All jobs of this name: those that wait, and the steps of those that run, or all of them by force."""

    @abstractmethod
    def nodes(self, deadline: Deadline) -> list[NodeFacts]: ...

    @abstractmethod
    def set_drained(self, node: str, reason: str | None, deadline: Deadline) -> None:
        """`None`: take it back, if it was drained."""

    @abstractmethod
    def settings(self, deadline: Deadline) -> dict[str, str]:
        """The cluster's configuration, as `scontrol show config` names it; `SLURM_VERSION` at least."""

    @abstractmethod
    def ensure_accounts(self, accounts: Sequence[str], deadline: Deadline) -> list[str]:
        """Accounts that our jobs can be charged to; a line for each that was made."""
