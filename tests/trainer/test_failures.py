"""The cause of a failure is distinguished from its consequences."""

import signal
from pathlib import Path

import pytest

from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.errors import TrainerError
from trainer.resilience.failures import (
    Failure,
    classify_exception,
    classify_exit,
    find_root_cause,
    read_failures,
    write_failure,
)

PEER = RuntimeError("[enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc] Connection closed by peer")


@pytest.mark.parametrize(
    ("error", "end_class"),
    [
        (TrainerError(EndClass.DATA_ERROR, "line 3"), EndClass.DATA_ERROR),
        (MemoryError(), EndClass.OUT_OF_MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), EndClass.OUT_OF_MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), EndClass.OUT_OF_MEMORY),
        (PEER, EndClass.COLLECTIVE_TIMEOUT),
        (ValueError("something of ours"), EndClass.INTERNAL_ERROR),
    ],
)
def test_an_exception_has_a_class(error: Exception, end_class: EndClass) -> None:
    assert classify_exception(error, 0).end_class is end_class


def test_a_rank_that_lost_its_peer_does_not_hide_the_first_cause() -> None:
    peer = Failure(0, EndClass.COLLECTIVE_TIMEOUT, "peer", because_of_peer=True, at=1.0)
    cause = Failure(1, EndClass.OUT_OF_MEMORY, "cause", at=2.0)
    assert find_root_cause([peer, cause]) is cause


def test_a_killed_process_is_the_cause_of_the_reports_of_the_others() -> None:
    later = Failure(0, EndClass.INTERNAL_ERROR, "confused by the loss", at=5.0)
    assert find_root_cause([later, classify_exit(1, -signal.SIGKILL, had_oom_kill=False)]).rank == 1


def test_an_abort_while_another_rank_reports_its_cause_is_a_consequence() -> None:
    cause = Failure(0, EndClass.OUT_OF_MEMORY, "cause", at=5.0)
    assert find_root_cause([cause, classify_exit(1, -signal.SIGABRT, had_oom_kill=False)]) is cause


def test_only_peer_failures_left_still_name_one() -> None:
    peers = [Failure(rank, EndClass.COLLECTIVE_TIMEOUT, "peer", True, 3.0 - rank) for rank in range(2)]
    assert find_root_cause(peers).rank == 1


@pytest.mark.parametrize(
    ("code", "short", "end_class", "words"),
    [
        (-signal.SIGKILL, False, EndClass.PROCESS_KILLED, "SIGKILL"),
        (-signal.SIGKILL, True, EndClass.OUT_OF_MEMORY, "ran out of memory"),
        (-signal.SIGSEGV, True, EndClass.PROCESS_KILLED, "SIGSEGV"),
        (3, False, EndClass.INTERNAL_ERROR, "status 3"),
    ],
)
def test_a_silent_death_is_classified_by_its_status(code: int, short: bool, end_class: EndClass, words: str) -> None:
    failure = classify_exit(2, code, had_oom_kill=short)
    assert failure.end_class is end_class
    assert words in failure.message


def test_failures_survive_their_process(tmp_path: Path) -> None:
    failure = classify_exception(TrainerError(EndClass.DATA_ERROR, "line 3"), 4)
    write_failure(tmp_path / "failures", failure)
    assert read_failures(tmp_path / "failures") == [failure]
    assert read_failures(tmp_path / "none") == []


def test_every_class_has_its_own_exit_status() -> None:
    assert set(EXIT_STATUS) == set(EndClass)
    assert len(set(EXIT_STATUS.values())) == len(EndClass)
