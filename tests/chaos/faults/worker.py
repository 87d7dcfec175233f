"""The worker function of the fault kit: `run_worker`, which records what it trains on and has a fault at one phase.

Runs in the real worker process; what it wraps is wrapped in that process only.
"""

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.trainer.agent_api import TOKEN
from trainer.agent.worker_process import run_worker
from trainer.resilience.assignment import Assignment, HttpConnection

AT_STEP = 15  # 0-based, between two checkpoints
SLOW_SECONDS = 2.0  # of a phase that happens once
SLOW_STEP_SECONDS = 0.2  # of each step from the fifth on: a step takes a tenth of it
SLOW_FROM = 5
IMPOSSIBLE_BYTES = 2**55
TOP_MANTISSA_BIT, TOP_EXPONENT_BIT = 22, 30  # of a number in fp32
LASTING_BIT = "lasting-bit"
"""Not in the table: a bit that flips each time that the step is computed, whatever its data are."""


@dataclass(frozen=True)
class Fault:
    """A fault of the first worker group of the first attempt. `kind` "": none. `records`: the folder in which all ranks
    record the rows that they trained on."""

    records: Path
    kind: str = ""
    phase: str = ""
    rank: int = 1


def work(fault: Fault, assignment: Assignment) -> None:
    """Stand in for `run_worker`."""
    _record_steps(fault.records, assignment)
    is_first = (assignment.run.attempt_number, assignment.restart_count) == (1, 0)
    if fault.kind == "slow":
        _let_replacements_be_worthwhile()
    if fault.kind and is_first and assignment.rank == fault.rank:
        _PHASES[fault.phase](fault, lambda: act(fault, assignment))
    run_worker(assignment)


def _let_replacements_be_worthwhile() -> None:
    """A tiny run has not long enough to go for a spare node to take the place of a slow one."""
    from trainer.training import monitor

    monitor.REPLACEMENT_SECONDS = 1.0


def _record_steps(folder: Path, assignment: Assignment) -> None:
    """Append a line for each step after its update is computed: the digests of its rows on this rank."""
    from trainer.optim.step import ShardOptimizer
    from trainer.training import loop

    name = f"{assignment.run.attempt_number:02}-{assignment.restart_count:03}-{assignment.rank:02}"
    path = folder / f"{name}-{os.getpid()}.jsonl"
    path.touch()
    counted, update = loop.counted_tokens, ShardOptimizer.step
    current: dict[str, Any] = {}

    def count(state: Any, batches: list[Any], step: int) -> Any:
        rows = [row.numpy().tobytes() for batch in batches for row in batch.tokens_BS]
        current.update(step=step, rows=[hashlib.sha256(row).hexdigest()[:16] for row in rows])
        return counted(state, batches, step)

    def apply(self: Any, rate: float, norm: Any, is_applied: Any) -> None:
        update(self, rate, norm, is_applied)
        with path.open("a") as file:
            file.write(json.dumps({**current, "is_applied": bool(is_applied)}) + "\n")

    loop.counted_tokens, ShardOptimizer.step = count, apply  # type: ignore[method-assign] # in this process


def act(fault: Fault, assignment: Assignment) -> None:
    """Let the fault happen, in this process and thread."""
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.kind == "slow":
        threading.Event().wait(SLOW_STEP_SECONDS if fault.phase in ("step", "backward") else SLOW_SECONDS)
    elif fault.kind == "oom":
        bytearray(IMPOSSIBLE_BYTES)
    elif fault.kind == "device":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    elif fault.kind == "gpu":
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    elif fault.kind == "exception":
        raise ValueError("an error of the fault kit")
    elif fault.kind == "exit":
        os._exit(0)
    else:
        ask(assignment)
        if fault.kind == "shard" and fault.phase != "start":  # the damage is found when it is read again
            raise ConnectionResetError(104, "a reason to restart, of the fault kit")


def ask(assignment: Assignment) -> None:
    """Let the test's platform cause what is outside this process, and wait until it has."""
    assert isinstance(assignment.connection, HttpConnection)
    url = f"{assignment.connection.url}/fault"
    httpx.post(url, json={}, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60).raise_for_status()


def _before(owner: Any, name: str, do: Callable[[], None], call: int = 1) -> None:
    """Do something before the function's call of this number."""
    function, calls = getattr(owner, name), []

    def wrapped(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == call:
            do()
        return function(*arguments, **named)

    setattr(owner, name, wrapped)


def _start(fault: Fault, do: Callable[[], None]) -> None:
    from trainer.training import worker

    _before(worker, "_join", do)


def _compile(fault: Fault, do: Callable[[], None]) -> None:
    from trainer.training import loop

    _before(loop, "warm_up", do)


def _step(fault: Fault, do: Callable[[], None]) -> None:
    """After the backward pass, before the statistics are reduced and the update is computed."""
    from trainer.training import loop

    reduce_statistics, calls = loop.reduce_statistics, []

    def wrapped(state: Any, *arguments: Any) -> Any:
        calls.append(None)
        if _is_now(fault, len(calls) - 1):
            if fault.kind == "bit":
                _flip_bit(next(iter(state.model.weights.trainable.values())).grad, TOP_MANTISSA_BIT)
            else:
                do()
        return reduce_statistics(state, *arguments)

    loop.reduce_statistics = wrapped


def _backward(fault: Fault, do: Callable[[], None]) -> None:
    """Inside the backward pass of the step's first micro-batch."""
    from trainer.parallel.parallelize import ParallelModel
    from trainer.training import loop

    counted, loss_of = loop.counted_tokens, ParallelModel._loss
    due: list[int] = []
    newest = [-1]

    def count(state: Any, batches: list[Any], step: int) -> Any:
        is_again = step <= newest[0]
        due[:] = [step] if _is_now(fault, step) and (not is_again or fault.kind == LASTING_BIT) else []
        newest[0] = step
        return counted(state, batches, step)

    def loss_with_fault(model: Any, batch: Any) -> Any:
        loss = loss_of(model, batch)
        if due and loss.requires_grad:
            due.clear()
            if fault.kind in ("bit", LASTING_BIT):
                parameter = next(each for each in model.stages[0].parameters() if each.requires_grad)
                handle = parameter.register_hook(
                    lambda gradient: (handle.remove(), _flip_bit(gradient.clone(), TOP_EXPONENT_BIT))[1]
                )
            else:
                loss.register_hook(lambda gradient: do())
        return loss

    loop.counted_tokens, ParallelModel._loss = count, loss_with_fault  # type: ignore[method-assign] # see above


def _is_now(fault: Fault, step: int) -> bool:
    return step >= SLOW_FROM if fault.kind == "slow" else step == AT_STEP


def _flip_bit(gradient: Any, bit: int) -> Any:
    """Flip a bit of the largest element. The highest one of the mantissa changes it by a quarter to a half, that of the
    exponent multiplies it by 2^128."""
    import torch

    flat = gradient.view(-1)
    flat[flat.abs().argmax()].view(torch.int32).bitwise_xor_(1 << bit)
    return gradient


def _evaluation(fault: Fault, do: Callable[[], None]) -> None:
    """In the middle of the second evaluation."""
    from trainer.training import loop

    evaluate, calls = loop.evaluate, []

    def wrapped(model: Any, sets: Any, report_progress: Callable[[], None]) -> Any:
        calls.append(None)
        if len(calls) != 2:
            return evaluate(model, sets, report_progress)

        def report() -> None:
            if calls:
                calls.clear()
                do()
            report_progress()

        return evaluate(model, sets, report)

    loop.evaluate = wrapped


def _checkpoint(fault: Fault, do: Callable[[], None]) -> None:
    """In the thread that stores the second checkpoint, before this rank's part; the third, where an older one than the
    one that is damaged must remain."""
    from trainer.checkpoint import writer

    _before(writer, "put_pieces", do, call=3 if fault.kind == "shard" else 2)


def _export(fault: Fault, do: Callable[[], None]) -> None:
    from trainer.training import export

    _before(export, "_write_weights", do)


def _end(fault: Fault, do: Callable[[], None]) -> None:
    """After the export and the last checkpoint, before the ranks leave."""
    from trainer.training import worker

    _before(worker, "leave", do)


_PHASES: dict[str, Callable[[Fault, Callable[[], None]], None]] = {
    "start": _start,
    "compile": _compile,
    "step": _step,
    "backward": _backward,
    "evaluation": _evaluation,
    "checkpoint": _checkpoint,
    "export": _export,
    "end": _end,
}
