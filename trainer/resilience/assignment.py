"""The complete configuration of a worker process.

Passed through the fork server's pipe: no key is in any environment.
"""

from dataclasses import dataclass, field
from pathlib import Path

from trainer.client.http import PlatformClient
from trainer.client.local import LocalPlatform, LocalSettings
from trainer.client.platform import Platform
from trainer.contract.run import RunConfig
from trainer.contract.training import TrainingSpec
from trainer.data.source import SourcePlace
from trainer.resilience.store_server import StoreAddress
from trainer.storage.base import Storage
from trainer.storage.cached import CachedStorage
from trainer.storage.presigned import PresignedStorage


@dataclass(frozen=True)
class HttpConnection:
    """`checkpoint_cache`: where copies of jobs' checkpoints are kept on this node, if anywhere."""

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
    """One rank of one generation. `training` is that of `run`, of which a run that only prepares data has none."""

    run: RunConfig
    training: TrainingSpec
    job_key: str = field(repr=False)
    connection: HttpConnection | FolderConnection
    generation: int
    rank: int
    local_rank: int
    store: StoreAddress
    sources: list[SourcePlace]
    work: Path
    stamp: str  # of the agent's process: distinguishes its files and writers from those of an earlier agent
    model_folder: Path | None  # where a standalone run leaves its export in the clear
    base_folder: Path | None = None  # of the base model
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    largest_micro_batch: int | None = None  # in sequences, where memory has no room for what was planned
    profile: tuple[int, int] | None = None  # first and last step of a trace, from 1

    @property
    def dataset_folder(self) -> Path:
        """Of the first source; all have the same tokenizer."""
        return self.sources[0].folder

    @property
    def folder(self) -> Path:
        """Return the folder of the worker group."""
        return worker_group_folder(self.work, self.stamp, self.generation)

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
        """Name under which this process reports."""
        return f"rank{self.rank}-g{self.generation}-{self.stamp}"


def traces_folder(generation: Path, number: int) -> Path:
    """Where a node's ranks leave `steps-FIRST-LAST-rank-R.json` of a job's request of this number, each when it is
    whole, or `.failed` with the reason."""
    return generation / f"profile-{number}"


def worker_group_folder(work: Path, stamp: str, generation: int) -> Path:
    """Return the folder of a worker group."""
    return work / f"generation-{generation}-{stamp}"
