"""Ranks that make no progress: which one holds up the others, what it is doing, and that the run continues."""

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.runs import run_alone, tiny_training
from trainer.agent import hang_watch, worker_group
from trainer.agent.rendezvous_client import RendezvousClient
from trainer.agent.supervisor import Supervisor
from trainer.agent.worker_process import run_worker
from trainer.contract.node_rendezvous import JoinReply
from trainer.contract.run import EndClass
from trainer.resilience import progress
from trainer.resilience.assignment import Assignment
from trainer.resilience.forking import fork_server_pid, start_fork_server

LOSS = "train/loss"


def work_until_data_is_missing(assignment: Assignment) -> None:
    """A worker that never gets its data of the 20th step, on rank 0 of the first group; stands in for `run_worker`."""
    from trainer.data import loader

    gather = loader.Loader._gather

    def stuck(self: loader.Loader, step: int) -> object:
        if step == 20 and (assignment.rank, assignment.restart_count) == (0, 0):
            threading.Event().wait()
        return gather(self, step)

    loader.Loader._gather = stuck
    run_worker(assignment)


def work_until_two_groups_wait(assignment: Assignment) -> None:
    """A worker that waits in a group of its own at the 20th step of the first group, so that the two ranks wait for
    each other; stands in for `run_worker`."""
    import torch
    import torch.distributed as dist

    from trainer.training import loop

    reduce_statistics, calls = loop.reduce_statistics, []

    def wait_apart(*arguments: object) -> object:
        calls.append(None)
        if len(calls) == 20 and assignment.restart_count == 0:
            groups = [dist.new_group([0, 1]) for _ in range(2)]
            dist.all_reduce(torch.ones(1), group=groups[assignment.rank])
        return reduce_statistics(*arguments)

    loop.reduce_statistics = wait_apart
    run_worker(assignment)


def work_with_another_branch(assignment: Assignment) -> None:
    """A worker that takes another branch on rank 1, at the 20th step of the first group: it broadcasts where the other
    rank sums; stands in for `run_worker`."""
    import torch
    import torch.distributed as dist

    from trainer.training import loop

    reduce_statistics, calls = loop.reduce_statistics, []

    def branch(*arguments: object) -> object:
        calls.append(None)
        if len(calls) == 20 and (assignment.rank, assignment.restart_count) == (1, 0):
            dist.broadcast(torch.ones(1), src=0)
            dist.broadcast(torch.ones(1), src=0)
        return reduce_statistics(*arguments)

    loop.reduce_statistics = branch
    run_worker(assignment)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are examined after seconds, not minutes. Their limits are those of a machine that runs other tests too."""
    monkeypatch.setattr(progress, "HANG_SECONDS", 3.0)
    monkeypatch.setattr(hang_watch, "EXAMINATION_SECONDS", 2.0)


def send(signal_number: int, local_rank: int) -> Callable[[Supervisor], None]:
    """An action for `at_first_checkpoint`."""

    def act(supervisor: Supervisor) -> None:
        os.kill(supervisor.worker_group._forked[local_rank].process.pid, signal_number)

    return act


@pytest.mark.parametrize("name", ["fork server", "rendezvous store"])
def test_a_stopped_server_is_replaced(tmp_path: Path, name: str) -> None:
    """In the middle of a run: the ranks save often, and need the store for that."""

    def act(supervisor: Supervisor) -> None:
        pids = {"fork server": fork_server_pid(), "rendezvous store": supervisor._servers._store.process.pid}
        os.kill(pids[name], signal.SIGSTOP)

    training = tiny_training(steps=100)
    run = run_alone(tmp_path / "run", training, processes=2, restarts=1, every_steps=5, at_first_checkpoint=act)
    assert run.end_class is EndClass.COMPLETED
    (stalled,) = run.events("progress.stalled")
    assert (stalled["because"], stalled["is_hang"]) == (f"the {name} is stopped (SIGSTOP, or a debugger)", True)
    assert sorted(run.series(LOSS)) == list(range(1, 101))


def test_ranks_that_train_while_the_fork_server_is_stopped_are_not_called_idle(tmp_path: Path) -> None:
    """The time is that of the ranks, not of the server: the ledger counts it as time without progress."""

    def act(supervisor: Supervisor) -> None:
        report = supervisor._report_event

        def report_and_stop(kind: str, **data: object) -> None:
            report(kind, **data)
            if kind == "progress.stalled":
                supervisor.request_stop(None)

        supervisor._report_event = report_and_stop
        os.kill(fork_server_pid(), signal.SIGSTOP)

    run = run_alone(tmp_path / "run", tiny_training(steps=100_000), restarts=1, every_steps=20, at_first_checkpoint=act)
    assert run.end_class is EndClass.STOPPED
    (stalled,) = run.events("progress.stalled")
    assert stalled["because"] == "the fork server is stopped (SIGSTOP, or a debugger)"
    assert stalled["seconds"] < progress.HANG_SECONDS


def test_a_fork_server_that_is_stopped_when_the_attempt_ends_does_not_keep_the_agent(tmp_path: Path) -> None:
    """It is the parent of the ranks: while it is stopped, the agent does not learn that they have ended."""

    stopped = []

    def act(supervisor: Supervisor) -> None:
        stopped.append(fork_server_pid())
        os.kill(stopped[0], signal.SIGSTOP)
        supervisor._attempt_over.set()  # as when the platform has ended it: it accepts no reports any more

    run = run_alone(tmp_path / "run", tiny_training(steps=100_000), every_steps=5, at_first_checkpoint=act)
    assert run.end_class is EndClass.STOPPED
    assert os.waitid(os.P_PID, stopped[0], os.WEXITED | os.WNOWAIT).si_status == signal.SIGKILL


def test_a_fork_server_that_is_stopped_before_the_ranks_start_is_replaced(tmp_path: Path) -> None:
    """The agent waits for it, to start the preparation of data, its rendezvous store or its ranks."""
    start_fork_server()  # it may have been killed before
    os.kill(fork_server_pid(), signal.SIGSTOP)
    run = run_alone(tmp_path / "run", tiny_training(steps=5))
    assert run.end_class is EndClass.COMPLETED
    (stalled,) = run.events("progress.stalled")
    assert (stalled["because"], stalled["phase"], stalled["ranks"]) == (
        "the fork server is stopped (SIGSTOP, or a debugger)", "data", []
    )  # fmt: skip
    assert sorted(run.series(LOSS)) == list(range(1, 6))


def test_ranks_do_not_wait_for_a_store_that_ended_before_they_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork server is killed after the rendezvous: the store ends with it, but the ranks start from the next one."""
    reply, killed = RendezvousClient.single_node_reply, []

    def kill_after(self: RendezvousClient, port: int) -> JoinReply:
        if not killed:
            killed.append(fork_server_pid())
            os.kill(killed[0], signal.SIGKILL)
        return reply(self, port)

    monkeypatch.setattr(RendezvousClient, "single_node_reply", kill_after)
    run = run_alone(tmp_path / "run", tiny_training(steps=5), restarts=1)
    assert run.end_class is EndClass.COMPLETED
    (restarted,) = run.events("generation.started")
    assert restarted["because"] == "the process of the rendezvous store was killed"
    assert sorted(run.series(LOSS)) == list(range(1, 6))


def test_the_store_of_a_killed_fork_server_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store ends with the fork server, but may still look alive when the ranks restart."""

    def act(supervisor: Supervisor) -> None:
        monkeypatch.setattr(supervisor._servers._store.process, "is_alive", lambda: True)
        os.kill(fork_server_pid(), signal.SIGKILL)

    training = tiny_training(steps=40)
    run = run_alone(tmp_path / "run", training, restarts=1, every_steps=5, at_first_checkpoint=act)
    assert run.end_class is EndClass.COMPLETED
    (restarted,) = run.events("generation.started")
    assert "killed together with the fork server" in restarted["because"]
    assert sorted(run.series(LOSS)) == list(range(1, 41))


def test_a_stopped_rank_is_named_and_the_run_continues(tmp_path: Path) -> None:
    training = tiny_training(steps=80)
    undisturbed = run_alone(tmp_path / "undisturbed", training, processes=2)
    run = run_alone(tmp_path / "run", training, processes=2, restarts=1, at_first_checkpoint=send(signal.SIGSTOP, 1))
    assert run.end_class is EndClass.COMPLETED
    (stalled,) = run.events("progress.stalled")
    assert (stalled["ranks"], stalled["is_hang"], stalled["phase"]) == ([1], True, "training")
    assert stalled["because"].startswith("rank 1 is stopped (SIGSTOP, or a debugger)")
    (restarted,) = run.events("generation.started")
    assert "rank 1 is stopped" in restarted["because"]
    assert run.series(LOSS) == undisturbed.series(LOSS)


@pytest.mark.parametrize(
    ("work", "processes", "ranks", "because"),
    [
        pytest.param(work_until_data_is_missing, 1, [0], r"rank 0 waits for its data in next_step", id="data"),
        pytest.param(
            work_until_two_groups_wait,
            2,
            [0, 1],
            r"rank 0 .* has not begun all_reduce 1, in which rank 1 waits; rank 1 .* in which rank 0 waits$",
            id="two groups",
        ),
        pytest.param(
            work_with_another_branch,
            2,
            [0, 1],
            r"rank 0 .* has begun all_reduce as collective \d+, .* broadcast; rank 1 .* broadcast as .* all_reduce$",
            id="another branch",
        ),
    ],
)
def test_a_hang_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable, processes: int, ranks: list[int], because: str
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", work)
    run = run_alone(tmp_path / "run", tiny_training(steps=40), processes=processes, restarts=1)
    assert run.end_class is EndClass.COMPLETED
    stalled = run.events("progress.stalled")[-1]  # on a crowded machine it may be reported first as still computing
    assert (stalled["ranks"], stalled["is_hang"]) == (ranks, True)
    assert re.match(because, stalled["because"]), stalled["because"]
