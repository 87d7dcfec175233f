"""The complete configuration of a worker process.

Passed through the fork server's pipe: no key is in any environment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainer.client.http import PlatformClient
from trainer.client.local import LocalPlatform, LocalSettings
from trainer.client.platform import Platform
from trainer.contract.run import RunConfig
from trainer.contract.training import TrainingSpec
from trainer.data.source import PreparedSource
from trainer.errors import EvidenceRow
from trainer.resilience.peer_link import Peers
from trainer.resilience.shadow_memory import ShadowMemory
from trainer.resilience.store_server import StoreAddress
from trainer.storage.base import Storage
from trainer.storage.cached import CachedStorage
from trainer.storage.presigned import PresignedStorage


@dataclass(frozen=True)
class HttpConnection:
    """A run on the platform. `checkpoint_cache`: folder for copies of checkpoints near this node, if there is one."""

    url: str
    token: str = field(repr=False)
    checkpoint_cache: Path | None = None

    def connect(self, run: RunConfig) -> tuple[Platform, Storage]:
        """Return the platform's client, and its storage with the cache of checkpoints if there is one."""
        client = PlatformClient(self.url, self.token)
        storage = PresignedStorage(client)
        return client, storage if self.checkpoint_cache is None else CachedStorage(
            storage, self.checkpoint_cache / run.job_id
        )


@dataclass(frozen=True)
class FolderConnection:
    """A run without platform, in an output folder."""

    output: Path
    settings: LocalSettings

    def connect(self, run: RunConfig) -> tuple[Platform, Storage]:
        """Return the platform in the folder, and its storage."""
        platform = LocalPlatform(self.output, self.settings)
        return platform, platform.storage


@dataclass(frozen=True)
class Assignment:
    """The configuration of one rank of a worker group. `training` is `run.training`, which is set here.

    `restart_count`: number of the worker group within the attempt, 0 before any restart; on the wire and on disk it is
    called generation.
    """

    run: RunConfig
    training: TrainingSpec
    job_key: str = field(repr=False)
    connection: HttpConnection | FolderConnection
    restart_count: int
    rank: int
    local_rank: int
    store: StoreAddress
    sources: list[PreparedSource]
    work: Path
    stamp: str  # of the agent's process: distinguishes its files and writers from those of an earlier agent
    model_folder: Path | None  # where a standalone run writes its export, unencrypted
    base_folder: Path | None = None  # of the base model
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    replayed_key: str = field(default="", repr=False)  # of the job of which checkpoints are replayed or exported
    largest_micro_batch: int | None = None  # in sequences, where memory has no room for what was planned
    profile: tuple[int, int] | None = None  # first and last step of a trace, from 1
    node: str = ""  # name of the node
    shadow: ShadowMemory | None = None  # for copies of this rank's state, from which the next process continues
    corrupted: tuple[int, int] | None = None  # steps and restart count of the last state in which replicas differed
    evidence: tuple[int, Sequence[EvidenceRow]] | None = None
    """If it is not known which replica was wrong then: the rank of this place, and what replicas had computed."""
    spare_nodes: int = 0  # that wait, and may take the place of a slow one
    peers: Peers | None = None  # for copies on other nodes, in a run that can lose one

    def with_training(self, training: TrainingSpec) -> "Assignment":
        """Return the assignment with another training part of the spec."""
        return replace(self, training=training, run=self.run.model_copy(update={"training": training}))

    @property
    def node_rank(self) -> int:
        """Return the rank of the node."""
        return self.rank // self.run.layout.processes_per_node

    @property
    def dataset_folder(self) -> Path:
        """Return the folder of the first source; all sources have the same tokenizer."""
        return self.sources[0].folder

    @property
    def folder(self) -> Path:
        """Return the folder of the worker group."""
        return worker_group_folder(self.work, self.stamp, self.restart_count)

    @property
    def profile_folder(self) -> Path:
        """Return the folder for profiles."""
        return self.work.parent / "profile"

    @property
    def shared_status(self) -> Path:
        """Return the path of the shared status file."""
        return self.folder / "board"

    @property
    def failures(self) -> Path:
        """Return the folder for reports of failed ranks."""
        return self.folder / "failures"

    @property
    def spool(self) -> Path:
        """Return the folder for batches to deliver."""
        return self.work / "spool"

    @property
    def writer(self) -> str:
        """Return the name under which this process reports."""
        return f"rank{self.rank}-g{self.restart_count}-{self.stamp}"


def traces_folder(group_folder: Path, number: int) -> Path:
    """Where a node's ranks leave `steps-FIRST-LAST-rank-R.json` of a job's request of this number, each when it is
    whole, or `.failed` with the reason."""
    return group_folder / f"profile-{number}"


def worker_group_folder(work: Path, stamp: str, restart_count: int) -> Path:
    """Return the folder of a worker group."""
    return work / f"generation-{restart_count}-{stamp}"
