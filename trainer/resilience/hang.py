"""Which rank of a node holds up the others, and what it is doing. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainer.resilience.description import Description, Frame

BUSY_SHARE = 0.02
"""Of a core: a process that uses more computes. One that waits uses a thousandth; one that computes on a crowded
machine may get as little as this."""


class Doing(StrEnum):
    """What a rank without progress is doing, as reports name it."""

    STOPPED = "is stopped (SIGSTOP, or a debugger)"
    DISK = "waits for a disk or another device of its node"
    SILENT = "does not answer"
    COMPILING = "compiles"
    STORAGE = "waits for the object store or the platform"
    DATA = "waits for its data"
    COLLECTIVE = "waits for other ranks"
    DEVICE = "waits for its device or for other ranks"
    COMPUTING = "computes"
    WAITING = "waits"


_EXCUSED = frozenset({Doing.COMPILING, Doing.STORAGE, Doing.COMPUTING})
"""What may take long without being a hang: then the limit of the phase decides."""

_COMPILER = ("/torch/_dynamo/", "/torch/_inductor/", "/torch/_functorch/", "/triton/")
_STORAGE = ("/trainer/storage/", "/trainer/client/", "/httpx/")
_DATA = ("/trainer/data/",)
_BY_THREADS = (*_DATA, "/trainer/checkpoint/", "/trainer/export/")  # read or store by other threads
_COLLECTIVE = ("/torch/distributed/",)
_BACKWARD = ("/torch/autograd/",)  # without CPU time, it waits for a collective of a backward pass
_AMONG_RANKS = frozenset({Doing.COLLECTIVE, Doing.DEVICE})


@dataclass(frozen=True)
class RankActivity:
    """A rank, what it is doing, and in which line of the trainer. `description`: its own, None without an answer."""

    rank: int
    doing: Doing
    place: str
    description: Description | None

    @property
    def text(self) -> str:
        """Return what it does, for people."""
        return f"rank {self.rank} {self.doing}" + (f" in {self.place}" if self.place else "")


@dataclass(frozen=True)
class Hang:
    """Why ranks of a node make no progress. `ranks`: those that hold up the others; empty if all of this node wait for
    other ranks. `is_certain`: nothing that may take long explains it."""

    ranks: list[int]
    because: str
    is_certain: bool


def activity(rank: int, state: str, cpu_share: float, description: Description | None) -> RankActivity:
    """Return what a rank is doing. `state`: that of its process (`process_state`). `cpu_share`: of a core."""
    if description is None:
        silent = {"T": Doing.STOPPED, "t": Doing.STOPPED, "D": Doing.DISK}.get(state, Doing.SILENT)
        return RankActivity(rank, silent, "", None)
    files = [frame.file for frame in description.main]
    elsewhere = [frame.file for stack in description.others for frame in stack]
    own = next((frame for frame in description.main if "/trainer/" in frame.file), None)
    if _any_in(files, _COMPILER):
        doing = Doing.COMPILING
    elif _any_in(files, _STORAGE) or (_any_in(files, _BY_THREADS) and _any_in(elsewhere, _STORAGE)):
        doing = Doing.STORAGE
    elif _any_in(files, _COLLECTIVE):
        doing = Doing.COLLECTIVE
    elif cpu_share > BUSY_SHARE and not description.uses_gpu:
        doing = Doing.COMPUTING
    elif _any_in(files, _BACKWARD):
        doing = Doing.COLLECTIVE
    elif own is not None and _any_in([own.file], _DATA):
        doing = Doing.DATA
    elif description.uses_gpu:
        doing = Doing.DEVICE
    else:
        doing = Doing.WAITING
    return RankActivity(rank, doing, _place(own), description)


def find_hang(ranks: Sequence[RankActivity]) -> Hang:
    """Return which of a node's ranks hold up the others: those that cannot run, else those that have begun fewer
    or other collectives of a group than others of this node, else those that do not wait for other ranks."""
    unable = [each for each in ranks if each.doing in (Doing.STOPPED, Doing.DISK, Doing.SILENT)]
    out_of_step = _out_of_step(ranks)
    alone = [each for each in ranks if each.doing not in _AMONG_RANKS]
    odd = unable or [each for each in ranks if each.rank in out_of_step] or alone
    texts = [each.text + out_of_step.get(each.rank, "") for each in odd or ranks[:1]]
    waiting = sum(each.doing in _AMONG_RANKS for each in ranks if each not in odd)
    if waiting > 1:
        texts.append(f"{waiting} ranks of its node wait for other ranks")
    is_excused = any(each.doing in _EXCUSED for each in ranks) and not unable
    return Hang([each.rank for each in odd], "; ".join(texts), not is_excused)


def format_stacks(activity_of_rank: RankActivity) -> list[str]:
    """Return lines for the log: the stacks of the main thread and of the trainer's other threads, innermost line first,
    and the collectives."""
    lines = [activity_of_rank.text]
    if activity_of_rank.description is not None:
        lines += _format_stack(activity_of_rank.description.main)
        for stack in activity_of_rank.description.others:
            if _any_in([frame.file for frame in stack], ("/trainer/",)):
                lines += ["  another thread:", *_format_stack(stack)]
        lines += [
            f"  collective {each.number} of group {each.group} (ranks {_short(each.ranks)}): {each.name}"
            for each in activity_of_rank.description.collectives
        ]
    return lines


def _format_stack(stack: Sequence[Frame]) -> list[str]:
    return [f"  {frame.function} ({frame.file}:{frame.line})" for frame in stack]


def _out_of_step(ranks: Sequence[RankActivity]) -> dict[int, str]:
    """Return what to say of each rank that has begun fewer collectives of a group than another rank of its node, or
    another collective than most."""
    newest: dict[str, dict[int, tuple[int, str]]] = {}
    described = {each.rank: each.description.collectives for each in ranks if each.description}
    for rank, collectives in described.items():
        for each in collectives:
            none_yet = dict.fromkeys(described.keys() & each.ranks, (0, ""))
            newest.setdefault(each.group, none_yet)[rank] = each.number, each.name
    found = {}
    for begun in newest.values():
        most = max(number for number, _ in begun.values())
        names = Counter(name for number, name in begun.values() if number == most)
        usual, times = names.most_common(1)[0]
        first = next(rank for rank, each in begun.items() if each == (most, usual))
        for rank, (number, name) in begun.items():
            if number < most:
                found[rank] = f" and has not begun {usual} {most}, in which rank {first} waits"
            elif name != usual or (len(names) > 1 and times == 1):
                others = ", ".join(sorted(set(names) - {name}))
                found[rank] = f" and has begun {name} as collective {most}, where another has begun {others}"
    return found


def _any_in(files: Sequence[str], parts: Sequence[str]) -> bool:
    return any(part in file for file in files for part in parts)


def _place(frame: Frame | None) -> str:
    return f"{frame.function} ({frame.file.rpartition('/trainer/')[2]}:{frame.line})" if frame is not None else ""


def _short(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8]))
    return f"{listed} and {len(ranks) - 8} more" if len(ranks) > 8 else listed
