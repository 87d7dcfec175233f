"""Which rung of the ladder of recovery an agent takes."""

import pytest

from trainer.agent.ladder import Rung, Situation, choose_rung
from trainer.contract.run import EndClass
from trainer.resilience.failures import RESTARTABLE

ONE_LEFT = {"restarts": 1, "max_restarts": 2}


@pytest.mark.parametrize(
    ("end_class", "facts", "rung"),
    [
        (EndClass.PROCESS_KILLED, ONE_LEFT, Rung.RESTART),
        (EndClass.HANG, ONE_LEFT, Rung.RESTART),
        (EndClass.PROCESS_KILLED, {"restarts": 2, "max_restarts": 2}, Rung.END),
        (EndClass.PROCESS_KILLED, {}, Rung.END),
        (EndClass.COLLECTIVE_TIMEOUT, {"is_round_outdated": True, "restarts": 2, "max_restarts": 2}, Rung.FOLLOW),
        (EndClass.STOPPED, {"is_round_outdated": True}, Rung.FOLLOW),
        (EndClass.STOPPED, ONE_LEFT, Rung.END),
        (EndClass.COMPLETED, {"is_round_outdated": True, **ONE_LEFT}, Rung.END),
        (EndClass.OUT_OF_MEMORY, {}, Rung.HALVE_MICRO_BATCH),
        (EndClass.LOSS_DIVERGED, {}, Rung.ROLL_BACK),
        (EndClass.CHECKPOINT_DAMAGED, {"was_copy_restored": True, "has_checkpoint": True}, Rung.DROP_COPIES),
        (EndClass.CHECKPOINT_DAMAGED, {"has_checkpoint": True}, Rung.SKIP_CHECKPOINT),
        (EndClass.CHECKPOINT_DAMAGED, ONE_LEFT, Rung.END),
        (EndClass.GPU_FAULT, {"has_spares": True}, Rung.LEAVE),
        (EndClass.NODE_STORAGE_ERROR, {"has_spares": True, **ONE_LEFT}, Rung.LEAVE),
        (EndClass.GPU_FAULT, {"can_shrink": True}, Rung.LEAVE),
        (EndClass.USER_ERROR, {"can_shrink": True, **ONE_LEFT}, Rung.END),
        (EndClass.GPU_FAULT, ONE_LEFT, Rung.END),
        (EndClass.USER_ERROR, {"has_spares": True, **ONE_LEFT}, Rung.END),
        (EndClass.DATA_ERROR, {"has_spares": True, **ONE_LEFT}, Rung.END),
    ],
)
def test_the_rung_follows_from_the_end_and_what_is_left(end_class: EndClass, facts: dict, rung: Rung) -> None:
    assert choose_rung(Situation(end_class, **facts)) is rung


@pytest.mark.parametrize("end_class", EndClass)
def test_no_end_restarts_for_ever(end_class: EndClass) -> None:
    """With nothing left, an attempt ends, or takes a rung that has a limit of its own."""
    used_up = Situation(end_class, restarts=3, max_restarts=3)
    assert choose_rung(used_up) in (Rung.END, Rung.HALVE_MICRO_BATCH, Rung.ROLL_BACK)
    with_some = choose_rung(Situation(end_class, restarts=2, max_restarts=3))
    assert (with_some is Rung.RESTART) == (end_class in RESTARTABLE)
