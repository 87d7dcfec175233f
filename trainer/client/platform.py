"""The interface between the agent and workers of a node and the platform."""

from collections.abc import Callable
from typing import Protocol

from trainer.contract.evaluation import EvaluationResults
from trainer.contract.manifest import (
    CheckpointId,
    CheckpointManifest,
    DataReportManifest,
    ModelManifest,
    ProfileManifest,
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
    Heartbeat,
    HeartbeatReply,
    PreparationRegistration,
    PreparationRelease,
    PreparationReply,
    PreparationRequest,
    RunConfig,
)
from trainer.errors import TrainerError


class AttemptOver(TrainerError):
    """The platform no longer accepts this attempt's token. Stop immediately, without a checkpoint or a report."""


class PreparationLost(TrainerError):
    """The attempt's lease of a preparation has expired, and another attempt prepares or has registered the data."""


class SequenceGap(Exception):
    """The batch does not follow the writer's last one that the platform has; it expects `next_sequence`."""

    def __init__(self, next_sequence: int) -> None:
        super().__init__(f"the platform expects batch {next_sequence}")
        self.next_sequence = next_sequence


class Platform(Protocol):
    """The calls of agent and workers to the platform: `client.http` sends them, `client.local` needs no platform."""

    def run(self) -> RunConfig:
        """Return the configuration of the attempt."""
        ...

    def keys(self) -> DataKeys:
        """Return the data keys of the job and of the data it reads."""
        ...

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Report progress. Return what the platform wants: a stop, a profile."""
        ...

    def rendezvous(self, join: JoinRequest, is_ended: Callable[[], bool]) -> JoinReply | None:
        """Join a rendezvous round with the address of this node. Return the platform's reply, which may wait.

        Return None if `is_ended` became true meanwhile.
        """
        ...

    def checkpoint(self, checkpoint: CheckpointId) -> CheckpointManifest:
        """Return the manifest of a checkpoint of the job."""
        ...

    def deliver(self, kind: str, batch: Batch) -> BatchReply:
        """Send a batch of a writer. `kind`: metrics, logs, progress or system. Raises SequenceGap."""
        ...

    def register_checkpoint(self, manifest: CheckpointManifest) -> None:
        """Register a checkpoint, all parts of which are stored."""
        ...

    def report_damaged(self, checkpoint: DamagedCheckpoint) -> None:
        """Report a checkpoint that cannot be read: `run` no longer names it, but the newest one before it.

        `run` raises TrainerError (CHECKPOINT_DAMAGED) when all of them are damaged.
        """
        ...

    def roll_back(self, request: RollbackRequest) -> Rollback | None:
        """Go back to an earlier checkpoint, which `run` names from then on. Return None if there is none."""
        ...

    def register_model(self, manifest: ModelManifest) -> None:
        """Register an exported model, all parts of which are stored."""
        ...

    def register_evaluation(self, results: EvaluationResults) -> None:
        """Register the results of an evaluation job."""
        ...

    def register_replay(self, result: ReplayResult) -> None:
        """Register the result of a segment of a replay."""
        ...

    def claim_preparation(self, request: PreparationRequest) -> PreparationReply:
        """Ask to prepare a data set, or renew that. Return whether to, and the result if there is one."""
        ...

    def release_preparation(self, release: PreparationRelease) -> None:
        """Give up a preparation, so that another attempt need not wait for its lease to expire. Never raises."""
        ...

    def register_dataset(self, registration: PreparationRegistration) -> None:
        """Register a prepared data set, all parts of which are stored. Raises PreparationLost."""
        ...

    def register_report(self, manifest: DataReportManifest) -> None:
        """Register a data report, all parts of which are stored."""
        ...

    def register_profile(self, manifest: ProfileManifest) -> None:
        """Register a profile, all parts of which are stored."""
        ...

    def end(self, end: AttemptEnd) -> None:
        """Report the end of the attempt."""
        ...
