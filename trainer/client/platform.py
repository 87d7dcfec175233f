"""The interface between the agent and workers of a node and the platform."""

from typing import Protocol

from trainer.contract.manifest import CheckpointManifest, DatasetManifest, ModelManifest, ProfileManifest
from trainer.contract.node_rendezvous import Join, Place
from trainer.contract.run import AttemptEnd, Batch, BatchReply, DataKeys, Heartbeat, HeartbeatReply, RunConfig
from trainer.errors import TrainerError


class AttemptOver(TrainerError):
    """The platform no longer knows this attempt: its token was withdrawn. Stop immediately, report nothing."""


class SequenceGap(Exception):
    """The platform expects another batch of this writer than the one it was sent."""

    def __init__(self, next_sequence: int) -> None:
        super().__init__(f"the platform expects batch {next_sequence}")
        self.next_sequence = next_sequence


class Platform(Protocol):
    """The calls of agent and workers to the platform: `client.http` sends them, `client.local` needs no platform."""

    def run(self) -> RunConfig: ...
    def keys(self) -> DataKeys: ...
    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply: ...
    def rendezvous(self, join: Join) -> Place: ...
    def deliver(self, kind: str, batch: Batch) -> BatchReply: ...
    def register_checkpoint(self, manifest: CheckpointManifest) -> None: ...
    def register_model(self, manifest: ModelManifest) -> None: ...
    def register_dataset(self, manifest: DatasetManifest) -> None: ...
    def register_profile(self, manifest: ProfileManifest) -> None: ...
    def end(self, end: AttemptEnd) -> None: ...
