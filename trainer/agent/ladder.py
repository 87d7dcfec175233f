"""What an agent does when its ranks have ended: which rung of the ladder of recovery it takes. Pure."""

from dataclasses import dataclass
from enum import Enum, auto

from trainer.contract.run import EndClass
from trainer.resilience.failures import RESTARTABLE

FAULTS_OF_A_NODE = frozenset({EndClass.GPU_FAULT, EndClass.NODE_STORAGE_ERROR, EndClass.NODE_UNFIT, EndClass.SLOW_NODE})
"""Ends that recur on the same node, and not on other nodes."""


class Rung(Enum):
    """From the cheapest to the end of the attempt, after which the platform may begin the next attempt.

    RESTART: restart the ranks, from the newest state. FOLLOW: restart them because another node does. DROP_COPIES: as
    RESTART, without the shadow checkpoints, which were damaged. SKIP_CHECKPOINT: from the checkpoint before the one
    that cannot be read. ROLL_BACK: from a checkpoint before the loss diverged, with other data. HALVE_MICRO_BATCH: with
    less memory. LEAVE: a spare node takes the place of this one, or the others continue on fewer
    nodes. END: report the end of the attempt.
    """

    RESTART = auto()
    FOLLOW = auto()
    DROP_COPIES = auto()
    SKIP_CHECKPOINT = auto()
    ROLL_BACK = auto()
    HALVE_MICRO_BATCH = auto()
    LEAVE = auto()
    END = auto()


@dataclass(frozen=True)
class Situation:
    """How the ranks of this node ended, and what is left to recover with.

    `restarts`, `max_restarts`: because of an end of class RESTARTABLE on this node. `is_round_outdated`: another node
    has left the round. `was_copy_restored`: these ranks began from shadow checkpoints. `has_checkpoint`: they were
    given a checkpoint. `has_spares`: the attempt has spare nodes, though all may be in use. `can_shrink`: the job may
    train on fewer nodes, though it may be on the fewest already.
    """

    end_class: EndClass
    restarts: int = 0
    max_restarts: int = 0
    is_round_outdated: bool = False
    was_copy_restored: bool = False
    has_checkpoint: bool = False
    has_spares: bool = False
    can_shrink: bool = False


def choose_rung(situation: Situation) -> Rung:
    """Return what to do. ROLL_BACK, HALVE_MICRO_BATCH and LEAVE may turn out to be impossible; then it ends."""
    match situation.end_class:
        case EndClass.OUT_OF_MEMORY:
            return Rung.HALVE_MICRO_BATCH
        case EndClass.LOSS_DIVERGED:
            return Rung.ROLL_BACK
        case EndClass.CHECKPOINT_DAMAGED if situation.was_copy_restored:
            return Rung.DROP_COPIES
        case EndClass.CHECKPOINT_DAMAGED if situation.has_checkpoint:
            return Rung.SKIP_CHECKPOINT
    if situation.is_round_outdated and situation.end_class in (EndClass.STOPPED, *RESTARTABLE):
        return Rung.FOLLOW
    if situation.end_class in FAULTS_OF_A_NODE and (situation.has_spares or situation.can_shrink):
        return Rung.LEAVE
    if situation.end_class in RESTARTABLE and situation.restarts < situation.max_restarts:
        return Rung.RESTART
    return Rung.END
