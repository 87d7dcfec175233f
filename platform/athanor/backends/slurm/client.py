"""The requests of the backend to a cluster, by any transport."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from athanor.backends.facts import NodeFacts
from athanor.backends.slurm.parse import SlurmJob
from athanor.backends.slurm.script import JobRequest
from athanor.backends.slurm.transport import Deadline, Transport


class SlurmClient(ABC):
    """Each call raises BackendUnavailable if no answer came, BackendRejected for a permanent refusal."""

    files: Transport
    """Where programs find the log directory."""

    @abstractmethod
    def jobs(self, deadline: Deadline, name: str | None = None) -> AbstractContextManager[Iterator[SlurmJob]]:
        """Yield the jobs of our user that Slurm still knows, in one call; with `name`, only those of this name."""

    @abstractmethod
    def accounted(self, names: Sequence[str], deadline: Deadline) -> Iterable[SlurmJob]:
        """Return what the accounting knows of these names; nothing without accounting."""

    @abstractmethod
    def submit(self, asked: JobRequest, variables: Mapping[str, str], deadline: Deadline) -> int:
        """Submit a job unless one of this name exists or existed. Return its number."""

    @abstractmethod
    def cancel(self, name: str, *, force: bool, deadline: Deadline) -> None:
        """Cancel all jobs of this name: pending jobs, and the steps of running ones; with `force`, the jobs."""

    @abstractmethod
    def nodes(self, deadline: Deadline) -> list[NodeFacts]:
        """Return the cluster's nodes."""

    @abstractmethod
    def set_drained(self, node: str, reason: str | None, deadline: Deadline) -> None:
        """Drain a node with a reason; with None, undrain it if it was drained."""

    @abstractmethod
    def settings(self, deadline: Deadline) -> dict[str, str]:
        """Return the configuration by the names of `scontrol show config`; at least `SLURM_VERSION`."""

    @abstractmethod
    def ensure_accounts(self, accounts: Sequence[str], deadline: Deadline) -> list[str]:
        """Create missing accounts and let our user charge them. Return a line for each change."""
