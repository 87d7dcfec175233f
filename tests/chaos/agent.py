"""An agent that trains nothing and reports everything: the trainer's own client, encryption and storage, at a pace.

What it leaves behind proves its end as a real one does: reports through the agent API, the encrypted model and its
manifest, the encrypted end marker in the store.
"""

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import httpx

from tests.chaos.ledger import Life
from tests.chaos.script import End, JobScript
from trainer.client.http import PlatformClient
from trainer.client.platform import AttemptOver, SequenceGap
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import CheckpointManifest, ModelManifest, StoredFile
from trainer.contract.run import (
    EXIT_STATUS,
    AttemptEnd,
    Batch,
    DataKeys,
    EndClass,
    Heartbeat,
    MetricPoint,
    RunConfig,
    StopRequest,
)
from trainer.errors import TrainerError
from trainer.storage.encrypted import put_encrypted
from trainer.storage.presigned import PresignedStorage

if TYPE_CHECKING:
    from tests.chaos.world import World

PATIENCE_SECONDS = 200.0  # longer than any outage, as a real agent's is
KILLED = -9


class Killed(Exception):
    """SIGKILL came: nothing more is said."""


class Agent(threading.Thread):
    """`asked` is SIGTERM, `killed` SIGKILL."""

    def __init__(self, world: "World", life: Life, environment: dict[str, str]) -> None:
        super().__init__(name=life.name, daemon=True)
        self.asked, self.killed = threading.Event(), threading.Event()
        self._world, self._life = world, life
        self._client = PlatformClient(
            environment["ATHANOR_AGENT_URL"], environment["ATHANOR_ATTEMPT_TOKEN"], retry_seconds=PATIENCE_SECONDS
        )
        self._storage = PresignedStorage(self._client)
        self._unsent: list[Batch] = []
        self._sequence = 0
        self._skew = timedelta()

    def run(self) -> None:
        try:
            end, status, forget = self._live()
        except Killed:
            end, status, forget = "killed", KILLED, False
        except AttemptOver:
            end, status, forget = "over", EXIT_STATUS[EndClass.STOPPED], False
        except TrainerError as error:
            end, status, forget = error.end_class.value, EXIT_STATUS[error.end_class], False
        self._world.agent_ended(self._life, end, status, forget=forget)

    def _live(self) -> tuple[str, int, bool]:
        run, keys = self._client.run(), self._client.keys()
        self._life.job_id, self._life.attempt_id = run.job_id, run.attempt_id
        self._life.number = run.attempt_number
        script = self._world.scripts[run.training.seed]
        self._skew = timedelta(seconds=script.skew_seconds)
        wanted = script.end(self._world.ledger.ended_before(run.job_id, self._life))
        first = run.resume.step + 1 if run.resume else 1
        complete = wanted in (End.COMPLETE, End.COMPLETE_UNTOLD)
        last = script.steps if complete else max(first, script.steps // 2)
        step = first - 1
        for step in range(first, last + 1):
            stop = self._step(step)
            if stop is not None or self.asked.is_set():
                return self._stop(run, keys, step, stop)
        return self._end(run, keys, script, wanted, step)

    def _step(self, step: int) -> StopRequest | None:
        if self.killed.wait(self._world.tick_seconds) or self._world.closing.is_set():
            raise Killed
        point = MetricPoint(step=step, time=self._now(), values={"train/loss": 1.0 / step})
        self._unsent.append(Batch(writer="rank-0", sequence=self._sequence, points=[point]))
        self._sequence += 1
        beat = Heartbeat(node_rank=0, generation=0, phase="training", step=step, processes_alive=1)
        try:
            reply = self._client.heartbeat(beat)
            self._ship()
        except httpx.HTTPError:
            return None  # the platform is away; the next beat is the retry
        return reply.stop

    def _ship(self) -> None:
        while self._unsent:
            try:
                self._client.deliver("metrics", self._unsent[0])
            except SequenceGap as gap:
                self._world.ledger.gaps.append(f"{self._life.name}: {gap}")
            del self._unsent[0]

    def _ship_all(self) -> None:
        while True:
            try:
                return self._ship()
            except httpx.HTTPError:
                if self.killed.wait(self._world.tick_seconds) or self._world.closing.is_set():
                    raise Killed from None

    def _stop(self, run: RunConfig, keys: DataKeys, step: int, stop: StopRequest | None) -> tuple[str, int, bool]:
        """Asked to end: a checkpoint, then the end, as the trainer does."""
        files = [self._put(run, keys, f"checkpoints/{run.attempt_number}/{step}/", "state")]
        manifest = CheckpointManifest(
            job_id=run.job_id, attempt_id=run.attempt_id, generation=0, step=step, tokens_seen=step, data_position=step,
            world_size=1, mesh={"data": 1}, spec_digest="", dataset_fingerprint="", torch_version="none",
            created_at=self._now(), files=files,
        )  # fmt: skip
        self._client.register_checkpoint(manifest)
        self._life.checkpoints += 1
        return self._tell(run, keys, EndClass.STOPPED, step, stopped_for=stop)

    def _end(self, run: RunConfig, keys: DataKeys, script: JobScript, wanted: End, step: int) -> tuple[str, int, bool]:
        if wanted is End.VANISH:
            return "vanished", KILLED, True
        if wanted is End.CRASH:
            return "killed", KILLED, False
        if wanted in (End.DATA_ERROR, End.STORAGE_ERROR):
            return self._tell(run, keys, EndClass(wanted.value), step)
        manifest = ModelManifest(
            job_id=run.job_id, attempt_id=run.attempt_id, step=step, num_parameters=1, created_at=self._now(),
            files=[self._put(run, keys, f"models/{run.attempt_number}/", "model.safetensors")],
        )  # fmt: skip
        self._client.register_model(manifest)
        self._life.models += 1
        return self._tell(run, keys, EndClass.COMPLETED, step, only_marker=wanted is End.COMPLETE_UNTOLD)

    def _tell(
        self,
        run: RunConfig,
        keys: DataKeys,
        end_class: EndClass,
        step: int,
        *,
        stopped_for: StopRequest | None = None,
        only_marker: bool = False,
    ) -> tuple[str, int, bool]:
        """Everything reported, then the end itself, last."""
        self._ship_all()
        end = AttemptEnd(end_class=end_class, last_step=step, stopped_for=stopped_for, at=self._now())
        key = f"{run.prefix}attempts/{run.attempt_number}/end.json"
        self._storage.put(key, Encryptor(keys.job).encrypt(end.model_dump_json().encode(), key)[0])
        if not only_marker:
            self._client.end(end)
        return end_class.value, EXIT_STATUS[end_class], only_marker

    def _put(self, run: RunConfig, keys: DataKeys, folder: str, name: str) -> StoredFile:
        return put_encrypted(self._storage, Encryptor(keys.job), run.prefix + folder, name, run.attempt_id.encode())

    def _now(self) -> datetime:
        return datetime.now(UTC) + self._skew
