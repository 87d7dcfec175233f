"""What a worker process is doing, as it describes itself to the agent when it makes no progress."""

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from trainer.contract.base import WireModel
from trainer.resilience.shared_status import SharedStatus

POLL_SECONDS = 1.0
MAX_FRAMES = 60
_BEGINNINGS = ("run_worker", "_bootstrap_inner")  # of a worker (`worker_process.py`), and of a thread (Python's own)


class Frame(WireModel):
    """A line of a stack."""

    file: str
    line: int
    function: str


class Collectives(WireModel):
    """A process group: its ranks, and number and name of the newest collective that this rank has begun in it."""

    group: str
    ranks: list[int]
    number: int
    name: str


class Description(WireModel):
    """Stacks of all threads, innermost line first, and the collectives of each process group. `uses_gpu`: whether its
    threads may be busy while they wait for a device."""

    main: list[Frame]
    others: list[list[Frame]]
    collectives: list[Collectives]
    uses_gpu: bool = False


def read_description(folder: Path, rank: int, number: int) -> Description | None:
    """Return a rank's answer to the request of this number, None if it has not answered, and delete it. `folder`: that
    of its worker group."""
    path = _answer_path(folder, rank, number)
    try:
        answer = Description.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    path.unlink()
    return answer


def _answer_path(folder: Path, rank: int, number: int) -> Path:
    return folder / f"doing-{number}-rank-{rank}.json"


def describe_on_request(shared_status: SharedStatus, folder: Path, rank: int) -> None:
    """Start the thread that answers the agent's requests for a description of this process."""
    main = threading.get_ident()
    threading.Thread(
        target=_answer_requests, args=(shared_status, folder, rank, main), name="description", daemon=True
    ).start()


def _answer_requests(shared_status: SharedStatus, folder: Path, rank: int, main: int) -> None:
    answered = shared_status.description_requested()
    pause = threading.Event()
    while not pause.wait(POLL_SECONDS):
        requested = shared_status.description_requested()
        if requested != answered:
            answered = requested
            final = _answer_path(folder, rank, requested)
            partial = final.with_suffix(".partial")
            try:
                partial.write_text(describe(main).model_dump_json())
                partial.replace(final)
            except OSError as error:  # such as a full disk: the agent then describes it as a process without an answer
                sys.stderr.write(f"cannot describe what this rank is doing: {error}\n")


def describe(main: int) -> Description:
    """Describe this process. `main`: the identifier of its main thread."""
    mine = threading.get_ident()
    stacks = {thread: _frames(frame) for thread, frame in sys._current_frames().items() if thread != mine}
    return Description(
        main=stacks.pop(main, []), others=list(stacks.values()), collectives=_collectives(), uses_gpu=_uses_gpu()
    )


def _frames(frame: Any) -> list[Frame]:
    """Return the stack down to where the worker or the thread begins."""
    found = []
    for line in reversed(traceback.extract_stack(frame)):
        found.append(Frame(file=line.filename, line=line.lineno or 0, function=line.name))
        if line.name in _BEGINNINGS or len(found) == MAX_FRAMES:
            break
    return found


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _collectives() -> list[Collectives]:
    """Return the newest collective of each group, from torch's flight recorder (`record_collectives`). Empty if the
    node has turned it off."""
    # Imported here, because the agent reads descriptions with this module and does not load torch, as workers have. The
    # first name is not in torch's stubs.
    from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined] # noqa: PLC0415 - see above
    from torch.distributed import distributed_c10d, get_process_group_ranks  # noqa: PLC0415 - see above

    groups = dict(distributed_c10d._world.pg_names)
    ranks = {name: sorted(get_process_group_ranks(group)) for group, name in groups.items()}
    return newest_collectives(json.loads(_dump_fr_trace_json()), ranks)


def newest_collectives(record: dict[str, Any], ranks: dict[str, list[int]]) -> list[Collectives]:
    """Return the newest collective that was begun in each group of a flight recording. `ranks`: of each group, by name.

    Messages between two ranks are left out: they are not numbered alike on all ranks. NCCL's ranks queue collectives;
    there, the newest one that has started counts. (FlightRecorder.hpp of torch 2.13; not run with NCCL.)
    """
    newest: dict[str, Collectives] = {}
    for entry in record.get("entries", []):
        backend, _, name = entry["profiling_name"].partition(":")
        if entry["is_p2p"] or (backend == "nccl" and entry["state"] == "scheduled"):
            continue
        group = str(entry["process_group"][0])
        number = entry["collective_seq_id"]
        newest[group] = Collectives(group=group, ranks=ranks.get(group, []), number=number, name=name)
    return list(newest.values())


def process_state(pid: int) -> tuple[str, float]:
    """Return the state of a process (`R` runs, `S` waits, `D` waits for a device, `T` is stopped) and the CPU seconds
    of all its threads. (`X`, 0) if it has ended. Source: proc(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
