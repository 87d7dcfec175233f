"""The platform of a standalone run: an output folder with a key file, and a callback for progress."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.contract.encryption import Encryptor, authenticate, new_keyset
from trainer.contract.evaluation import EvaluationResults
from trainer.contract.manifest import (
    MANIFEST_NAME,
    CheckpointId,
    CheckpointManifest,
    DataReportManifest,
    ModelManifest,
    ProfileManifest,
    find_best,
)
from trainer.contract.node_rendezvous import JoinReply, JoinRequest
from trainer.contract.replay import ReplayResult
from trainer.contract.rollback import Rollback, RollbackRequest
from trainer.contract.run import (
    AttemptEnd,
    Batch,
    BatchReply,
    DamagedCheckpoint,
    DataKeys,
    DatasetSource,
    EndClass,
    Heartbeat,
    HeartbeatReply,
    PreparationRegistration,
    PreparationRelease,
    PreparationReply,
    PreparationRequest,
    RunConfig,
)
from trainer.contract.telemetry import TelemetrySpec
from trainer.contract.training import CheckpointPolicy, ProcessLayout, TrainingSpec
from trainer.errors import TrainerError
from trainer.storage.folder import FolderStorage

KEY_FILE = "data.key"
ROLLBACK_FILE = "rollbacks.jsonl"
STORE_FOLDER = "store"
MODEL_FOLDER = "model"


@dataclass(frozen=True)
class LocalSettings:
    """The settings of a job file that apply to standalone runs."""

    training: TrainingSpec
    layout: ProcessLayout = ProcessLayout()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    max_restarts_in_place: int = 0
    telemetry: TelemetrySpec = TelemetrySpec()
    preflight: bool = False


class LocalPlatform:
    """`output` holds the key file, the store, one JSON-lines file per kind of report, and the exported model.

    A second run with the same output resumes from its newest complete checkpoint.
    """

    def __init__(
        self, output: Path, settings: LocalSettings, on_batch: Callable[[str, Batch], None] | None = None
    ) -> None:
        self.output = output
        self._settings = settings
        self._on_batch = on_batch
        output.mkdir(parents=True, exist_ok=True)
        self.storage = FolderStorage(output / STORE_FOLDER)
        self._damaged: set[tuple[int, int]] = set()

    def run(self) -> RunConfig:
        """Return the configuration from the job file."""
        parts = self._settings.training.data.parts
        datasets = [DatasetSource(dataset_id="", name=part.source, origin="builtin") for part in parts]
        return RunConfig(
            job_id="standalone",
            attempt_id="standalone",
            attempt_number=1,
            prefix="",
            layout=self._settings.layout,
            training=self._settings.training,
            checkpoint=self._settings.checkpoint,
            dataset=datasets[0],
            more_datasets=datasets[1:],
            resume=self._newest_checkpoint(),
            best=self._best_checkpoint(),
            rollbacks=self._rollbacks(),
            max_restarts_in_place=self._settings.max_restarts_in_place,
            telemetry=self._settings.telemetry,
            preflight=self._settings.preflight,
            outbound_allow=None,
        )

    def keys(self) -> DataKeys:
        """Return the key of the output folder; create it at first."""
        path = self.output / KEY_FILE
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(new_keyset())
        key = path.read_text()
        return DataKeys(job=key, dataset=key)

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Return a reply that asks for nothing."""
        return HeartbeatReply()

    def rendezvous(self, join: JoinRequest, is_ended: Callable[[], bool]) -> JoinReply | None:
        """Return a place of state `over`; unused, since a standalone run has one node."""
        return JoinReply(state="over", round=join.round)

    def checkpoint(self, checkpoint: CheckpointId) -> CheckpointManifest:
        """Raise TrainerError; unused, since only a rendezvous names checkpoints."""
        raise TrainerError(EndClass.INTERNAL_ERROR, f"a standalone run does not look up checkpoints: {checkpoint}")

    def deliver(self, kind: str, batch: Batch) -> BatchReply:
        """Append a batch to `KIND.jsonl` in the output folder."""
        records = [*batch.points, *batch.lines, *batch.events, *batch.samples]
        with (self.output / f"{kind}.jsonl").open("a") as file:
            file.writelines(record.model_dump_json() + "\n" for record in records)
        if self._on_batch is not None:
            self._on_batch(kind, batch)
        return BatchReply(next_sequence=batch.sequence + 1)

    def register_checkpoint(self, manifest: CheckpointManifest) -> None:
        """Delete checkpoints beyond the newest `keep_last`, but for milestones, and the best one if it is to be
        retained; and what is left of saves before this one that were interrupted. The manifest in the store is the
        registration."""
        policy, best, complete = self._settings.checkpoint, self._best_checkpoint(), self._checkpoints()
        superseded = [
            (step, folder)
            for step, folder in complete[: -policy.keep_last]
            if (best is None or step != best.step) and not policy.is_milestone(step)
        ]
        interrupted = [each for each in self._folders() if each[0] < manifest.step and each not in complete]
        for _, folder in superseded + interrupted:
            self.storage.delete_prefix(f"checkpoints/{folder.name}")

    def report_damaged(self, checkpoint: DamagedCheckpoint) -> None:
        """Remember a checkpoint that cannot be read, until this process ends."""
        self._damaged.add((checkpoint.generation, checkpoint.step))

    def roll_back(self, request: RollbackRequest) -> Rollback | None:
        """Delete the checkpoints of the diverged state, complete or not, and append the rollback to a file in the
        output folder."""
        found = (each for each in self._intact_checkpoints() if each.step <= request.last_good_step)
        good = next(found, None)
        if good is None:
            return None
        rollback = Rollback(
            attempt_id="standalone",
            generation=request.generation,
            from_step=good.step,
            first_sequence=request.first_sequence,
        )
        for step, folder in self._folders():
            if step > good.step:
                self.storage.delete_prefix(f"checkpoints/{folder.name}")
        with (self.output / ROLLBACK_FILE).open("a") as file:
            file.write(rollback.model_dump_json() + "\n")
        return rollback

    def register_model(self, manifest: ModelManifest) -> None:
        """Do nothing: the export is a plain folder here, complete once its config exists."""

    def register_evaluation(self, results: EvaluationResults) -> None:
        """Write `evaluation.json` in the output folder."""
        (self.output / "evaluation.json").write_text(results.model_dump_json(indent=2))

    def register_replay(self, result: ReplayResult) -> None:
        """Write the result in the output folder."""
        (self.output / f"replay-{result.number}.json").write_text(result.model_dump_json(indent=2))

    def claim_preparation(self, request: PreparationRequest) -> PreparationReply:
        """Return that this run prepares its data: nobody else does."""
        return PreparationReply(state="prepare")

    def release_preparation(self, release: PreparationRelease) -> None:
        """Do nothing: nobody waits for it."""

    def register_dataset(self, registration: PreparationRegistration) -> None:
        """Do nothing: a standalone run's data sets stay in the cache folder."""

    def register_report(self, manifest: DataReportManifest) -> None:
        """Do nothing: outside the platform, `python -m trainer data-report` makes reports."""

    def register_profile(self, manifest: ProfileManifest) -> None:
        """Do nothing: standalone runs write traces to the output folder (`--profile`)."""

    def end(self, end: AttemptEnd) -> None:
        """Write `end.json` in the output folder."""
        (self.output / "end.json").write_text(end.model_dump_json(indent=2))

    def _rollbacks(self) -> list[Rollback]:
        """Return the rollbacks of all runs with this output, oldest first."""
        path = self.output / ROLLBACK_FILE
        lines = path.read_text().splitlines() if path.exists() else []
        return [Rollback.model_validate_json(line) for line in lines]

    def _folders(self) -> list[tuple[int, Path]]:
        """Return step and folder of each checkpoint and of each save that did not end."""
        folders = (self.output / STORE_FOLDER / "checkpoints").glob("step-*")
        return sorted((int(folder.name.split("-")[1]), folder) for folder in folders)

    def _checkpoints(self) -> list[tuple[int, Path]]:
        return [(step, folder) for step, folder in self._folders() if (folder / MANIFEST_NAME).exists()]

    def _intact_checkpoints(self) -> Iterator[CheckpointManifest]:
        """Yield the manifests, the newest first."""
        encryptor = Encryptor(self.keys().job)
        for _, folder in reversed(self._checkpoints()):
            key = f"checkpoints/{folder.name}/{MANIFEST_NAME}"
            plaintext = encryptor.decrypt_unlisted(self.storage.get(key), key)
            # It was encrypted under its own address, which authenticates it; those of earlier versions have no tag.
            manifest = authenticate(CheckpointManifest.model_validate(json.loads(plaintext)), encryptor)
            if (manifest.generation, manifest.step) not in self._damaged:
                yield manifest

    def _best_checkpoint(self) -> CheckpointManifest | None:
        return find_best(self._intact_checkpoints()) if self._settings.checkpoint.keep_best else None

    def _newest_checkpoint(self) -> CheckpointManifest | None:
        for manifest in self._intact_checkpoints():
            return manifest
        if self._damaged:
            raise TrainerError(
                EndClass.CHECKPOINT_DAMAGED,
                f"no checkpoint in {self.output / STORE_FOLDER} can be read; train into another folder",
            )
        return None
