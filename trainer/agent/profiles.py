"""Upload requested traces of this node's ranks to the platform, in a thread beside the training."""

import gzip
import logging
import re
import shutil
import threading
from pathlib import Path

from trainer.agent.worker_group import WorkerGroup
from trainer.client.platform import AttemptOver, Platform
from trainer.contract.encryption import Encryptor, authenticate
from trainer.contract.manifest import ProfileManifest
from trainer.contract.run import ProfileRequest, RunConfig
from trainer.errors import TrainerError
from trainer.resilience.assignment import traces_folder
from trainer.storage.base import Storage
from trainer.storage.encrypted import encrypt_file

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
_NAME = re.compile(r"^steps-(\d+)-(\d+)-rank-(\d+)\.(json|failed)$")


class ProfileUploader:
    """`request_profile` from the heartbeat's thread, at each heartbeat with a request; `finish` when the workers have
    ended.

    Errors are reported to the platform or the log and never affect the run.
    """

    def __init__(
        self, run: RunConfig, encryptor: Encryptor, platform: Platform, storage: Storage, node_rank: int
    ) -> None:
        self._run, self._encryptor, self._node_rank = run, encryptor, node_rank
        self._platform, self._storage = platform, storage
        self.worker_group: WorkerGroup | None = None  # the newest
        self._requested: ProfileRequest | None = None
        self._closed: set[int] = set()  # numbers of the requests that are answered
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def request_profile(self, request: ProfileRequest) -> None:
        """Pass the request to the workers. A worker group started later gets it with the next heartbeat."""
        if request.number in self._closed or self.worker_group is None or self._ended.is_set():
            return
        self.worker_group.shared_status.request_profile(request)
        self._requested = request
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="profiles", daemon=True)
            self._thread.start()

    def finish(self, patience_seconds: float) -> None:
        """Upload the traces that the workers have left, then end; wait at most `patience_seconds`."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(patience_seconds)

    def _loop(self) -> None:
        while True:
            is_last = self._ended.wait(POLL_SECONDS)
            try:
                self._poll()
            except AttemptOver:
                return
            except (TrainerError, OSError) as error:
                logger.warning("could not deliver a profile: %s", error)
            if is_last:
                return

    def _poll(self) -> None:
        request, worker_group = self._requested, self.worker_group
        if request is None or worker_group is None or request.number in self._closed:
            return
        folder = traces_folder(worker_group.folder, request.number)
        found = {int(match[3]): match for path in _files_in(folder) if (match := _NAME.match(path.name))}
        if set(found) < set(worker_group.ranks):
            return
        self._closed.add(request.number)
        failed = [match[0] for match in found.values() if match[4] == "failed"]
        if failed:
            self._report(request, problem="; ".join(f"{name}: {(folder / name).read_text()}" for name in failed))
            return
        try:
            self._deliver(request, folder, list(found.values()))
        except AttemptOver:
            raise
        except (TrainerError, OSError) as error:
            self._report(request, problem=f"could not store the traces: {error}")
        shutil.rmtree(folder, ignore_errors=True)

    def _deliver(self, request: ProfileRequest, folder: Path, found: list[re.Match[str]]) -> None:
        prefix = f"{self._run.prefix}profiles/{self._run.attempt_number}-{request.number}/"
        files = []
        for match in sorted(found, key=lambda each: int(each[3])):
            packed = _compress(folder / match[0])
            files.append(encrypt_file(self._storage, self._encryptor, prefix, packed.name, packed))
            packed.unlink()
        manifest = ProfileManifest(
            job_id=self._run.job_id,
            attempt_id=self._run.attempt_id,
            number=request.number,
            node_rank=self._node_rank,
            first_step=int(found[0][1]),
            last_step=int(found[0][2]),
            files=files,
        )
        self._platform.register_profile(authenticate(manifest, self._encryptor))

    def _report(self, request: ProfileRequest, problem: str) -> None:
        manifest = ProfileManifest(number=request.number, node_rank=self._node_rank, problem=problem[:2000])
        self._platform.register_profile(manifest)


def _files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _compress(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    with path.open("rb") as plain, gzip.open(packed, "wb", compresslevel=5) as target:
        shutil.copyfileobj(plain, target, 2**20)
    return packed
