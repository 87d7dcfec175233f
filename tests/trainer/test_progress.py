"""When a rank without progress is examined, when it must end, and what descriptions of ranks say about it."""

import pytest

from trainer.contract.timeouts import CHECKPOINT_TIMEOUT, HANG_SECONDS, HANG_STEPS, STARTUP_TIMEOUT, TRAINING_TIMEOUT
from trainer.resilience.description import Collectives, Description, Frame, newest_collectives
from trainer.resilience.hang import Doing, RankActivity, activity, find_hang
from trainer.resilience.progress import Observed, ProgressWatch

ROOT = "/opt/venv/lib/python3/site-packages"


def watch(*observed: tuple[float, Observed]) -> ProgressWatch:
    """A watch of one rank after observations, each a number of seconds after the one before, in parts of a second."""
    watch = ProgressWatch(1)
    for seconds, rank in observed:
        for _ in range(round(seconds * 10)):
            watch.observe([rank], 0.1)
    return watch


def steps(count: int, seconds: float, phase: str = "training") -> list[tuple[float, Observed]]:
    return [(seconds, Observed(number, number, phase)) for number in range(1, count + 1)]


def test_short_steps_have_the_shortest_limit() -> None:
    regular = watch(*steps(10, 0.5))
    assert regular.limit(0) == HANG_SECONDS
    assert regular.overdue() == []
    late = watch(*steps(10, 0.5), (HANG_SECONDS + 1, Observed(10, 10, "training")))
    assert (late.overdue(), late.must_end(0)) == ([0], False)


def test_long_steps_have_a_longer_limit() -> None:
    assert watch(*steps(10, 20.0)).limit(0) == pytest.approx(20 * HANG_STEPS, abs=1)


def test_a_run_may_have_another_limit() -> None:
    patient = ProgressWatch(1, hang_seconds=120.0)
    for number in range(10):
        patient.observe([Observed(number, number, "training")], 0.5)
    assert patient.limit(0) == 120.0
    stopped = Observed(9, 9, "training", is_stopped=True)
    for _ in range(round(HANG_SECONDS) + 2):
        patient.observe([stopped], 1.0)
    assert patient.must_end(0), "a process that is stopped waits for nothing"


def test_an_unknown_rhythm_ends_only_by_the_limit_of_the_phase() -> None:
    first = watch((60.0, Observed(1, 1, "starting")))
    assert (first.has_rhythm(0), first.longest(0)) == (False, STARTUP_TIMEOUT.total_seconds())
    save = watch(*steps(10, 0.5), (200.0, Observed(11, 11, "checkpoint")))
    assert (save.overdue(), save.has_rhythm(0), save.must_end(0)) == ([0], False, False)
    assert save.longest(0) == CHECKPOINT_TIMEOUT.total_seconds()
    evaluation = watch((60.0, Observed(2, 4, "evaluation")))
    assert not evaluation.has_rhythm(0)
    training = watch(*steps(10, 0.5), (TRAINING_TIMEOUT.total_seconds() + 2, Observed(10, 10, "training")))
    assert training.must_end(0)


def test_steps_between_two_observations_count() -> None:
    """Twenty steps, an evaluation and a save within a fifth of a second: the phase was never seen to repeat."""
    fast = ProgressWatch(1)
    fast.observe([Observed(3, 0, "starting")], 0.2)
    fast.observe([Observed(40, 20, "training")], 0.2)
    assert (fast.has_rhythm(0), fast.limit(0)) == (True, HANG_SECONDS)


def test_a_process_may_be_stopped_for_seconds_in_any_phase() -> None:
    assert not watch((HANG_SECONDS - 1, Observed(1, 1, "model", is_stopped=True))).must_end(0)
    assert watch((HANG_SECONDS + 1, Observed(1, 1, "model", is_stopped=True))).must_end(0)
    resumed = watch((HANG_SECONDS + 1, Observed(1, 1, "model", is_stopped=True)), (0.1, Observed(1, 1, "model")))
    assert not resumed.must_end(0)


def test_time_in_which_the_watcher_did_not_run_is_not_that_of_the_ranks() -> None:
    frozen = watch(*steps(10, 0.5))
    frozen.observe([Observed(10, 10, "training")], 3600.0)
    assert (frozen.overdue(), frozen.idle(0) < 2.0) == ([], True)


def stack(*files: str) -> list[Frame]:
    return [Frame(file=file, line=1, function="f") for file in files]


def doing(*main: str, share: float = 0.0, others: tuple[str, ...] = (), uses_gpu: bool = False) -> Doing:
    described = Description(
        main=stack(*main), others=[stack(*others)] if others else [], collectives=[], uses_gpu=uses_gpu
    )
    return activity(0, "S", share, described).doing


LOOP = f"{ROOT}/trainer/training/loop.py"
LOADER = (f"{ROOT}/queue.py", f"{ROOT}/trainer/data/loader.py", LOOP)
STORE = (f"{ROOT}/httpx/_client.py", f"{ROOT}/trainer/storage/presigned.py")


def test_what_a_rank_does_is_read_from_its_stacks() -> None:
    assert doing(f"{ROOT}/torch/distributed/distributed_c10d.py", LOOP) is Doing.COLLECTIVE
    assert doing(f"{ROOT}/torch/autograd/graph.py", LOOP) is Doing.COLLECTIVE
    assert doing(f"{ROOT}/torch/autograd/graph.py", LOOP, share=0.5) is Doing.COMPUTING
    assert doing(f"{ROOT}/torch/autograd/graph.py", LOOP, share=1.0, uses_gpu=True) is Doing.COLLECTIVE
    assert doing(f"{ROOT}/torch/_inductor/codecache.py", LOOP) is Doing.COMPILING
    assert doing(*LOADER) is Doing.DATA
    assert doing(*LOADER, others=STORE) is Doing.STORAGE
    assert doing("/usr/lib/threading.py", f"{ROOT}/trainer/checkpoint/writer.py", LOOP, others=STORE) is Doing.STORAGE
    assert doing(LOOP, others=STORE) is Doing.WAITING
    assert doing(LOOP, share=1.0, uses_gpu=True) is Doing.DEVICE


@pytest.mark.parametrize(("state", "expected"), [("T", Doing.STOPPED), ("D", Doing.DISK), ("R", Doing.SILENT)])
def test_a_rank_without_an_answer_is_known_by_the_state_of_its_process(state: str, expected: Doing) -> None:
    assert activity(0, state, 0.0, None).doing is expected


def waiting(rank: int, number: int, name: str = "all_reduce", doing: Doing = Doing.COLLECTIVE) -> RankActivity:
    begun = [Collectives(group="0", ranks=[0, 1, 2], number=number, name=name)]
    return RankActivity(rank, doing, "f (training/loop.py:1)", Description(main=[], others=[], collectives=begun))


def test_the_rank_that_has_not_begun_a_collective_holds_up_the_others() -> None:
    hang = find_hang([waiting(0, 7), waiting(1, 6, doing=Doing.DATA), waiting(2, 7)])
    assert (hang.ranks, hang.is_certain) == ([1], True)
    assert hang.because == (
        "rank 1 waits for its data in f (training/loop.py:1) and has not begun all_reduce 7, in which rank 0 waits; "
        "2 ranks of its node wait for other ranks"
    )


def test_the_rank_in_another_collective_than_most_is_named() -> None:
    hang = find_hang([waiting(0, 7), waiting(1, 7, "broadcast"), waiting(2, 7)])
    assert hang.ranks == [1]
    assert "has begun broadcast as collective 7, where another has begun all_reduce" in hang.because


def test_ranks_that_all_wait_in_the_same_collective_wait_for_another_node() -> None:
    hang = find_hang([waiting(0, 7), waiting(1, 7)])
    assert (hang.ranks, hang.is_certain) == ([], True)


def test_a_stopped_rank_is_named_before_those_that_wait_for_it() -> None:
    assert find_hang([waiting(0, 7), activity(1, "T", 0.0, None), waiting(2, 6)]).ranks == [1]


@pytest.mark.parametrize("excuse", [Doing.COMPILING, Doing.STORAGE, Doing.COMPUTING])
def test_what_may_take_long_is_no_certain_hang(excuse: Doing) -> None:
    hang = find_hang([waiting(0, 7), waiting(1, 6, doing=excuse)])
    assert (hang.ranks, hang.is_certain) == ([1], False)


def test_a_collective_that_nccl_has_only_queued_is_not_begun() -> None:
    def entry(number: int, state: str, *, backend: str = "nccl", is_p2p: bool = False) -> dict:
        return {
            "collective_seq_id": number, "state": state, "is_p2p": is_p2p, "process_group": ["0", "default_pg"],
            "profiling_name": f"{backend}:all_reduce",
        }  # fmt: skip

    queued = {"entries": [entry(1, "completed"), entry(2, "started"), entry(3, "scheduled")]}
    assert [each.number for each in newest_collectives(queued, {"0": [0, 1]})] == [2]
    gloo = {"entries": [entry(1, "scheduled", backend="gloo"), entry(9, "scheduled", backend="gloo", is_p2p=True)]}
    assert newest_collectives(gloo, {"0": [0, 1]}) == [
        Collectives(group="0", ranks=[0, 1], number=1, name="all_reduce")
    ]
