"""Shadow checkpoints: a restart in place continues from the memory of the node, without losing more than a step."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path

import psutil
import pytest
import yaml

from tests.trainer.runs import MIXTURE, TINY, FinishedRun, run_alone, tiny_text, tiny_training
from tests.trainer.shadow_runs import (
    Act,
    after_step,
    kill,
    send,
    shadow_run,
    work_in_another_attempt,
    work_on_another_mesh,
    work_until_a_copy_is_half_made,
    work_until_a_save_is_lost,
    work_with_copies_that_have_no_numbers,
    work_with_copies_that_take_three_steps,
)
from tests.trainer.test_runs import LOSS, final_tensors
from trainer.agent import hang_watch, worker_group
from trainer.agent.supervisor import Supervisor
from trainer.contract.run import EndClass
from trainer.resilience import progress
from trainer.resilience.shadow_memory import HEADER_BYTES, PAGE, SLOTS, ShadowMemory

ROOT = Path(__file__).resolve().parents[2]


def assert_equal(run: FinishedRun, undisturbed: FinishedRun) -> None:
    assert run.end_class is undisturbed.end_class is EndClass.COMPLETED
    for name in (LOSS, "evaluation/loss", "train/gradient_norm", "train/skipped_steps"):
        assert run.series(name) == undisturbed.series(name), name
    assert final_tensors(run) == final_tensors(undisturbed)


OUTLIERS = {"learning_rate": 1e-6, "gradient_watch": {"skip_sigma": 0.001}}
RUNS = {
    "replicated, with skipped steps": (2, {"optimizer": OUTLIERS}),
    "sharded, Muon": (2, {"parallelism": {"zero": 3}, "optimizer": {"name": "muon"}}),
    "tensor": (2, {"parallelism": {"tensor": 2}}),
    "pipeline": (2, {"parallelism": {"pipeline": 2, "micro_batch_sequences": 2}}),
    "compressed sums": (2, {"parallelism": {"compression": {"kind": "int8"}}}),
    "mixture of experts": (2, {"parallelism": {"expert": 2}, "model": {"shape": MIXTURE}}),
    "offloaded, ramp": (2, {"optimizer": {"offload": True}, "batch_ramp": {"start_tokens_per_step": 64, "steps": 50}}),
    "four ranks": (4, {"parallelism": {"tensor": 2, "zero": 3}}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if number < 2 else pytest.mark.slow) for number, name in enumerate(RUNS)]
)
def test_a_killed_rank_loses_at_most_a_step_and_changes_no_number(tmp_path: Path, name: str) -> None:
    """The kill may come at any moment of a step, an evaluation or a copy."""
    processes, changes = RUNS[name]
    training = tiny_training(**{"steps": 60, "evaluation": {"every_steps": 7, "sequences": 8}} | changes)
    undisturbed = shadow_run(tmp_path / "undisturbed", training, processes=processes, restarts=0, shadow="none")
    step, rank = random.randrange(22, 50), random.randrange(processes)
    run = shadow_run(tmp_path / "run", training, after_step(step, kill(rank)), processes=processes)
    (restored,) = run.events("checkpoint.restored")
    assert restored["tier"] == "shadow", run.events("shadow.skipped")
    assert restored["step"] >= step - 1
    assert_equal(run, undisturbed)
    if "optimizer" in changes and changes["optimizer"] is OUTLIERS:
        assert max(run.series("train/skipped_steps").values()) > 0


def test_training_does_not_wait_for_digests_and_restarts_do_not_draw_first_weights(
    two_ranks: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", work_with_copies_that_take_three_steps)
    run = shadow_run(tmp_path / "run", tiny_training(steps=40), after_step(25, kill(1)), shadow="auto")
    (restored,) = run.events("checkpoint.restored")
    assert restored["tier"] == "shadow", run.events("shadow.skipped")
    assert_equal(run, two_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("interval", ["auto", 5])
def test_a_stopped_rank_restarts_from_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: str | int
) -> None:
    monkeypatch.setattr(progress, "HANG_SECONDS", 3.0)
    monkeypatch.setattr(hang_watch, "EXAMINATION_SECONDS", 2.0)
    training = tiny_training(steps=80)
    undisturbed = shadow_run(tmp_path / "undisturbed", training, restarts=0, shadow="none")
    run = shadow_run(tmp_path / "run", training, after_step(40, send(signal.SIGSTOP, 1)), shadow=interval)
    (restored,) = run.events("checkpoint.restored")
    assert restored["tier"] == "shadow"
    assert interval == "auto" or restored["step"] >= 35
    assert_equal(run, undisturbed)


def test_a_torn_copy_is_skipped_and_the_other_is_used(
    two_ranks: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", work_until_a_copy_is_half_made)
    run = shadow_run(tmp_path / "run", tiny_training(steps=40))
    assert [event["step"] for event in run.events("checkpoint.restored")] == [14]
    skipped = {(event["step"], event["rank"]): event["because"] for event in run.events("shadow.skipped")}
    assert skipped == {(15, 1): "it is incomplete: its process ended while it was made"}
    assert os.getpid() not in holders(), "the agent, which is this process, lets go of it at the end"
    assert_equal(run, two_ranks)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """40 steps by two processes, undisturbed."""
    return run_alone(tmp_path_factory.mktemp("two") / "run", tiny_training(steps=40), processes=2, every_steps=1000)


def alter_copies_of(local_rank: int) -> Act:
    """Kill a rank and change one byte of each of its copies."""

    def act(supervisor: Supervisor) -> None:
        process = supervisor.worker_group._forked[local_rank].process
        descriptor = supervisor._copies._shadows[local_rank][2]._descriptor
        process.kill()
        connection.wait([process.sentinel])
        size = (os.fstat(descriptor).st_size - PAGE) // SLOTS
        for slot in range(SLOTS):
            at = PAGE + slot * size + HEADER_BYTES + 1000
            os.pwrite(descriptor, bytes([os.pread(descriptor, 1, at)[0] ^ 1]), at)

    return act


@pytest.mark.parametrize("every_steps", [10, pytest.param(1000, marks=pytest.mark.slow)])
def test_an_altered_copy_is_skipped_and_the_stored_checkpoint_is_used(
    two_ranks: FinishedRun, tmp_path: Path, every_steps: int
) -> None:
    run = shadow_run(
        tmp_path / "run", tiny_training(steps=40), after_step(25, alter_copies_of(1)), every_steps=every_steps
    )
    because = {event["because"] for event in run.events("shadow.skipped") if event["rank"] == 1}
    assert "its content does not have its digest" in because
    restored = [(event["tier"], event["step"] % 10) for event in run.events("checkpoint.restored")]
    assert restored == ([("stored", 0)] if every_steps == 10 else [])
    assert run.series(LOSS) == two_ranks.series(LOSS)


def test_a_copy_whose_next_loss_is_wrong_is_dropped(
    two_ranks: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", work_with_copies_that_have_no_numbers)
    run = shadow_run(tmp_path / "run", tiny_training(steps=40), restarts=1)
    assert [event["step"] for event in run.events("checkpoint.restored")] == [24]
    reasons = [event["because"] for event in run.events("generation.started")]
    assert len(reasons) == 2
    assert reasons[1].startswith("the shadow checkpoint of step 24 is damaged: the loss of the next step is nan")
    assert run.series(LOSS) == two_ranks.series(LOSS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "because"),
    [(work_on_another_mesh, "it is of another mesh"), (work_in_another_attempt, "it is of another attempt")],
)
def test_copies_of_another_run_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable, because: str
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", work)
    run = shadow_run(tmp_path / "run", tiny_training(steps=40), after_step(25, kill(1)))
    assert run.end_class is EndClass.COMPLETED
    assert run.events("checkpoint.restored") == []
    assert any(event["because"].startswith(because) for event in run.events("shadow.skipped"))
    assert sorted(run.series(LOSS)) == list(range(1, 41))


@pytest.mark.parametrize("keep_best", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stored_checkpoint_that_was_lost_is_made_up_for(
    two_ranks: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keep_best: bool
) -> None:
    """A resume saves where it begins; only with `keep_best` the lost one was more than a place to resume from."""
    monkeypatch.setattr(worker_group, "run_worker", work_until_a_save_is_lost)
    run = shadow_run(tmp_path / "run", tiny_training(steps=40), every_steps=10, keep_best=keep_best)
    restored = [event["step"] for event in run.events("checkpoint.restored")]
    saved = [event["step"] for event in run.events("checkpoint.saved")]
    if keep_best:
        (because,) = {event["because"] for event in run.events("shadow.skipped")} - {"this rank has no copy of it"}
        assert because == "the checkpoint of step 10, which has the lowest held-out loss, was not stored"
        assert (restored, saved) == ([], [10, 20, 30, 40])
    else:
        assert restored[0] >= 13
        assert saved == [restored[0], 20, 30, 40]
    assert run.series(LOSS) == two_ranks.series(LOSS)


def holders() -> set[int]:
    """Processes that hold memory of shadow checkpoints."""
    found = set()
    for process in psutil.process_iter():
        try:
            links = [link.readlink() for link in Path(f"/proc/{process.pid}/fd").iterdir()]
        except OSError:
            continue
        if any("athanor-shadow" in str(link) for link in links):
            found.add(process.pid)
    return found


def test_a_killed_agent_leaves_nothing_in_memory(tmp_path: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    job = {
        "resources": {"processes_per_node": 2}, "training": {**TINY, "steps": 100_000},
        "checkpoint": {"shadow_every_steps": 1}, "retry": {"restarts_in_place": 1},
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "text.txt").write_text(tiny_text())
    agent = subprocess.Popen(
        [sys.executable, "-m", "trainer", "job.yaml", "--output", "out", "--data", "text.txt"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        metrics = tmp_path / "out" / "metrics.jsonl"
        while not metrics.exists() or not metrics.stat().st_size:
            assert agent.poll() is None
            time.sleep(0.02)  # between two looks
        own = {child.pid for child in psutil.Process(agent.pid).children(recursive=True)} & holders()
        assert len(own) == 2
    finally:
        agent.kill()
        agent.wait()
    psutil.wait_procs([psutil.Process(pid) for pid in own if psutil.pid_exists(pid)], timeout=60)
    assert not holders() & {agent.pid, *own}
    assert set(Path("/dev/shm").iterdir()) <= before


def test_a_slot_is_whole_only_once_all_of_it_is_written() -> None:
    memory = ShadowMemory.create("test")
    assert memory is not None
    assert memory.open(100) == []
    assert [header.step for header in memory.headers()] == [-1, -1]
    memory.begin(0, 7)
    memory.data(0)[:3] = b"abc"
    assert [(header.step, header.text) for header in memory.headers()] == [(7, None), (-1, None)]
    memory.finish(0, 7, b"text")
    memory.report_loss(6, 1.0)
    assert (memory.headers()[0].text, memory.headers()[0].next_loss) == (b"text", None)
    memory.report_loss(7, 2.5)
    memory.begin(1, 8)
    assert [(header.step, header.text, header.next_loss) for header in memory.headers()] == [
        (7, b"text", 2.5), (8, None, None),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="step 8 has"):
        memory.finish(1, 8, bytes(HEADER_BYTES))
    memory.begin(0, 9)
    assert memory.headers()[0].next_loss is None
    lost = memory.open(5000)
    assert [(header.step, header.text) for header in lost] == [(9, None), (8, None)]
    assert [header.step for header in memory.headers()] == [-1, -1]
    memory.close()
