"""Asynchronous checkpoints: training waits for a copy to host memory, and threads encrypt and store it. Beside a GPU,
processes encrypt (`trainer.checkpoint.encrypting_processes`)."""

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import torch

from trainer.checkpoint.encrypting_processes import EncryptingProcesses
from trainer.checkpoint.file import EncodedFile
from trainer.checkpoint.index import INDEX_NAME, FileIndex, describe, encode
from trainer.checkpoint.interval import SaveInterval
from trainer.checkpoint.state import Shard, Snapshot, written_shards
from trainer.client.platform import Platform
from trainer.contract.base import WireModel
from trainer.contract.encryption import Encryptor, authenticate
from trainer.contract.manifest import MANIFEST_NAME, PARTS_IN_FLIGHT, CheckpointManifest, StoredFile
from trainer.parallel.mesh import Mesh
from trainer.reporting.reporter import Reporter
from trainer.resilience.assignment import Assignment
from trainer.storage.base import Storage
from trainer.storage.encrypted import PartEncryptor, put_encrypted, put_pieces

DELIVERY_SECONDS = 60.0
SHARDS_TIMEOUT = timedelta(minutes=30)  # for the slowest rank's upload, retries included


class Written(WireModel):
    """What a rank reports to the first one about its part of a checkpoint."""

    file: StoredFile
    index: FileIndex


@dataclass(frozen=True)
class Identity:
    """What a checkpoint must agree with to be read again."""

    spec_digest: str
    dataset_fingerprint: str


def uses_processes(device: torch.device) -> bool:
    """Return whether parts are encrypted by other processes, several at a time: on a CPU they would take the cores of
    training."""
    is_gpu: bool = device.type == "cuda"
    return is_gpu


class CheckpointWriter:
    """Saves checkpoints, one at a time. The error of a failed save is raised by the next call of any method."""

    def __init__(
        self,
        assignment: Assignment,
        mesh: Mesh,
        platform: Platform,
        storage: Storage,
        identity: Identity,
        reporter: Reporter,
        micro_batch: int,
    ) -> None:
        self._assignment, self._mesh, self._identity = assignment, mesh, identity
        self._micro_batch = micro_batch
        self._platform, self._storage, self._reporter = platform, storage, reporter
        self._encryptor = Encryptor(assignment.job_key)
        self._in_flight = 1
        self._parts: PartEncryptor = self._encryptor
        if uses_processes(mesh.device):
            self._in_flight = PARTS_IN_FLIGHT
            self._parts = EncryptingProcesses(assignment.job_key, PARTS_IN_FLIGHT)
        self._store = mesh.open_store("checkpoints/")
        self._snapshot, self._preparing = Snapshot(), threading.Thread()
        self._thread: threading.Thread | None = None
        self._is_final = False
        self._is_writing = False  # whether the newest save was being written when the last step was added
        self._stall_seconds = self._save_seconds = 0.0  # of the newest save that training continues after
        self._failure: BaseException | None = None
        self._interval = SaveInterval(assignment.run, mesh.world_size, reporter)
        self.last_step = assignment.run.resume.step if assignment.run.resume else -1
        self._saved_at = time.monotonic()

    def prepare(self, shards: Sequence[Shard]) -> None:
        """On a GPU, allocate the memory of a save in the background: the first one would hold up training for it. Call
        it once training has begun, with all of this rank's live shards."""

        def allocate() -> None:
            torch.cuda.set_device(self._mesh.device)  # of this thread
            self._snapshot.prepare(shards)

        if self._mesh.device.type == "cuda":
            self._preparing = threading.Thread(target=allocate, name="checkpoint-memory", daemon=True)
            self._preparing.start()

    @property
    def is_due(self) -> bool:
        """Return whether it is time for a save by `checkpoint.every_minutes`, on the first rank."""
        since = time.monotonic() - self._saved_at
        return self._mesh.rank == 0 and self._interval.is_due(since, is_saving=self._thread is not None)

    def save(
        self,
        step: int,
        shards: Iterable[Shard],
        own: dict[str, torch.Tensor],
        metrics: dict[str, float],
        progress: str,
        *,
        is_final: bool = False,
    ) -> float:
        """Start to save the state after `step` finished steps. Return the seconds that training waited.

        `own`: copies of the state that only this rank has. `progress`: of the manifest. `is_final`: training ends with
        this checkpoint, so nothing changes the state while it is stored, and no copy is made.
        """
        begin = time.monotonic()
        self.wait()
        free = time.monotonic()
        if self._preparing.is_alive():
            self._preparing.join()
        mine = written_shards(shards) if is_final else self._snapshot.take(shards)
        self._stall_seconds, blocked = time.monotonic() - free, time.monotonic() - begin
        # Training changes its metrics while they are stored.
        stored = dict(metrics)
        save = partial(self._run, step, mine, own, stored, progress, blocked_seconds=blocked, is_final=is_final)
        self._thread = threading.Thread(target=save, name="checkpoint")
        self._thread.start()
        self._is_writing, self._is_final = True, is_final
        self.last_step, self._saved_at = step, time.monotonic()
        return blocked

    def add_step(self, seconds: float) -> None:
        """Add the duration of a step, without stalls and evaluations: what a save costs is measured by it too."""
        self._interval.add_step(seconds, is_saving=self._is_writing)
        self._is_writing = self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the current save is stored and registered. Raises its error."""
        if self._thread is not None:
            self._thread.join()
        self._is_writing = False
        self.check()

    def check(self) -> None:
        """Raise the error of a failed save. Of one that is stored, count what it has cost, once its steps are added."""
        is_stored = self._thread is not None and not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure
        if is_stored and not self._is_writing:
            self._thread = None
            if not self._is_final:
                self._interval.add_save(self._stall_seconds, self._save_seconds)

    def _run(
        self,
        step: int,
        mine: dict[str, Shard],
        own: dict[str, torch.Tensor],
        metrics: dict[str, float],
        progress: str,
        *,
        blocked_seconds: float,
        is_final: bool,
    ) -> None:
        begin = time.monotonic()
        try:
            prefix = self._prefix(step)
            content, path = EncodedFile(mine, own), f"rank{self._mesh.rank}"
            file = put_pieces(
                self._storage, self._parts, prefix, path, content.pieces(), content.size, in_flight=self._in_flight
            )
            index, shared = describe(content.entries)
            if not self._store.check([f"shared/{index.shared}"]):  # many ranks share it, and saves after this one
                self._store.set(f"shared/{index.shared}", shared)
            self._store.set(f"{step}/{self._mesh.rank}", Written(file=file, index=index).model_dump_json())
            if self._mesh.rank == 0:
                written = self._all_written(step)
                files = [each.file for each in written]
                whole = self._index_of(written)
                files.append(put_encrypted(self._storage, self._encryptor, prefix, INDEX_NAME, whole))
                # A resume does not repeat the steps before it, so the platform must have their reports before it can
                # happen; where it does not take them, it does not take a checkpoint either.
                self._reporter.deliver(DELIVERY_SECONDS)
                self._commit(prefix, step, files, metrics, progress)
                size = sum(part.size for file in files for part in file.parts)
                self._save_seconds = time.monotonic() - begin
                self._reporter.event(
                    "checkpoint.saved",
                    step=step,
                    seconds=self._save_seconds,
                    blocked_seconds=blocked_seconds,
                    final=is_final,
                    bytes=size,
                )
        except BaseException as error:  # noqa: BLE001 - raised again in the training thread, at its next check
            self._failure = error

    def _all_written(self, step: int) -> list[Written]:
        keys = [f"{step}/{rank}" for rank in range(self._mesh.world_size)]
        self._store.wait(keys, SHARDS_TIMEOUT)
        found = [Written.model_validate_json(self._store.get(key)) for key in keys]
        for key in keys:  # the store would grow with each checkpoint
            self._store.delete_key(key)
        return found

    def _index_of(self, written: list[Written]) -> bytes:
        indices = [each.index for each in written]
        shared = {digest: self._store.get(f"shared/{digest}") for digest in {each.shared for each in indices}}
        return encode(indices, shared)

    def _commit(
        self, prefix: str, step: int, files: list[StoredFile], metrics: dict[str, float], progress: str
    ) -> None:
        run = self._assignment.run
        manifest = CheckpointManifest(
            job_id=run.job_id,
            attempt_id=run.attempt_id,
            generation=self._assignment.restart_count,
            step=step,
            tokens_seen=self._assignment.training.tokens_before(step),
            data_position=step,
            world_size=self._mesh.world_size,
            mesh=self._mesh.axes,
            micro_batch=self._micro_batch,
            spec_digest=self._identity.spec_digest,
            dataset_fingerprint=self._identity.dataset_fingerprint,
            torch_version=str(torch.__version__),
            metrics=metrics,
            progress=progress,
            created_at=datetime.now(UTC),
            files=files,
        )
        manifest = authenticate(manifest, self._encryptor)
        key = prefix + MANIFEST_NAME
        ciphertext, _ = self._encryptor.encrypt(manifest.model_dump_json().encode(), key)
        self._storage.put(key, ciphertext)
        self._platform.register_checkpoint(manifest)

    def _prefix(self, step: int) -> str:
        run = self._assignment.run
        return f"{run.prefix}checkpoints/step-{step:08d}-{run.attempt_number}-{self._assignment.restart_count}/"
