"""When ranks have made no progress for too long. Pure: what was observed in, what is overdue out."""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainer.contract.timeouts import (
    CHECKPOINT_TIMEOUT,
    EXPORT_TIMEOUT,
    HANG_SECONDS,
    HANG_STEPS,
    STARTUP_TIMEOUT,
    TRAINING_TIMEOUT,
)

EXAMINED_AFTER = 4.0
"""Times HANG_SECONDS after which ranks without regular reports are examined, and what they do is reported."""
RECENT = 50  # intervals between reports; the longest of them decides
ENOUGH = 5  # steps, or reports in another phase, after which intervals are known
LONGEST_OBSERVATION = 1.0
"""Seconds between two observations that count at most. The watcher may have been suspended together with the ranks, or
was not scheduled; that time says nothing about them."""

_LONGEST = {
    "training": TRAINING_TIMEOUT,
    "evaluation": TRAINING_TIMEOUT,
    "checkpoint": CHECKPOINT_TIMEOUT,
    "export": EXPORT_TIMEOUT,
}
_ADAPTIVE = frozenset({"training", "evaluation"})  # phases with regular reports


@dataclass
class StoppedTime:
    """How long a process has been stopped, by SIGSTOP or a debugger."""

    seconds: float = 0.0

    def observe(self, *, is_stopped: bool, seconds: float) -> None:
        """Take note of its state, `seconds` after the observation before."""
        self.seconds = self.seconds + min(seconds, LONGEST_OBSERVATION) if is_stopped else 0.0

    @property
    def is_too_long(self) -> bool:
        """Return whether it must end."""
        return self.seconds > HANG_SECONDS


@dataclass
class _Rank:
    num_reports: int = -1
    num_finished: int = 0
    phase: str = ""
    idle: float = 0.0
    stopped: StoppedTime = field(default_factory=StoppedTime)
    intervals: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=RECENT)))
    reports: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Observed:
    """One rank at one moment. `num_reports`: grows with its progress. `num_finished`: steps that its process has
    finished. `is_stopped`: by SIGSTOP or a debugger."""

    num_reports: int
    num_finished: int
    phase: str
    is_stopped: bool = False


class ProgressWatch:
    """How long each rank of a node has made no progress, and how long it may.

    In phases with regular reports a rank that waits may take HANG_STEPS times the longest of its RECENT intervals, but
    at least HANG_SECONDS; before ENOUGH are known and in other phases, the limit of the phase. A process may be stopped
    for HANG_SECONDS in any phase.
    """

    def __init__(self, num_ranks: int, hang_seconds: float | None = None) -> None:
        """`hang_seconds`: instead of HANG_SECONDS, but for processes that are stopped."""
        self._hang_seconds = HANG_SECONDS if hang_seconds is None else hang_seconds
        self._ranks = [_Rank() for _ in range(num_ranks)]

    def observe(self, observed: Sequence[Observed], seconds: float) -> None:
        """Take note of all ranks, `seconds` after the observation before."""
        seconds = min(seconds, LONGEST_OBSERVATION)
        for rank, now in zip(self._ranks, observed, strict=True):
            rank.stopped.observe(is_stopped=now.is_stopped, seconds=seconds)
            rank.idle += seconds
            if now.num_reports != rank.num_reports:
                if now.phase == rank.phase and rank.num_reports >= 0:
                    rank.intervals[now.phase].append(rank.idle)  # at least as long as that between two reports
                    rank.reports[now.phase] += now.num_reports - rank.num_reports
                rank.num_reports, rank.num_finished = now.num_reports, now.num_finished
                rank.phase, rank.idle = now.phase, 0.0

    def idle(self, rank: int) -> float:
        """Return the seconds since the last progress of a rank."""
        return self._ranks[rank].idle

    def limit(self, rank: int) -> float:
        """Return the seconds without progress after which a rank is examined."""
        state = self._ranks[rank]
        known = state.intervals[state.phase]
        if self.has_rhythm(rank):
            return min(max(self._hang_seconds, HANG_STEPS * max(known, default=0.0)), self.longest(rank))
        return min(EXAMINED_AFTER * self._hang_seconds, self.longest(rank))

    def has_rhythm(self, rank: int) -> bool:
        """Return whether it is known how long a rank takes in this phase; until then, only `longest` ends it."""
        state = self._ranks[rank]
        if state.phase == "training":  # an observation may miss phases between steps, but not their number
            return state.num_finished >= ENOUGH
        return state.phase in _ADAPTIVE and state.reports[state.phase] >= ENOUGH

    def longest(self, rank: int) -> float:
        """Return the seconds after which a rank is overdue whatever it does."""
        return _LONGEST.get(self._ranks[rank].phase, STARTUP_TIMEOUT).total_seconds()

    def overdue(self) -> list[int]:
        """Return the ranks to examine, by their place on this node."""
        return [
            number
            for number, rank in enumerate(self._ranks)
            if rank.idle > self.limit(number) or rank.stopped.is_too_long
        ]

    def must_end(self, rank: int) -> bool:
        """Return whether a rank has reached a limit that holds whatever it does."""
        state = self._ranks[rank]
        return state.idle > self.longest(rank) or state.stopped.is_too_long
