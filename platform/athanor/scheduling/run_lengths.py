"""How long a job will run, drawn or predicted from past runs. Pure."""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# Assumed shares of the time limit that runs take, without history: from an early failure to a run that is cut off.
UNKNOWN = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0)
MIN_PAST_RUNS = 20  # of a team, before its own history is used
# Of a running job without like ones, on top of its training steps: evaluations and checkpoints, as a factor, and the
# export and end.
EVALUATIONS_AND_SAVES = (1.0, 1.3)
END_SECONDS = (5.0, 30.0)
# Assumed standard deviation of the logarithm of run times of like jobs, and how many observed runs it counts for.
ASSUMED_SPREAD, ASSUMED_RUNS = 0.2, 3
EXACT_FROM = 9  # runs from which the 90 % quantile of the next one is within those seen


class PastRun(NamedTuple):
    """An ended run: how long it held its slots, and its time limit, in seconds."""

    seconds: float
    limit: int


@dataclass(frozen=True)
class RunTimes:
    """What is known of how long jobs run, best source first.

    `left`: seconds of training that running jobs have left, by their progress; `beside`: the seconds that each of
    them still needs for everything else, as like jobs did. `alike`: seconds for which jobs like each one held their
    slots. `of_leaf`, `of_all`: past runs of each leaf of the quota tree, and of all. `default_limit`: the time limit of
    a job whose user wrote none, in seconds.
    """

    of_leaf: Mapping[str, Sequence[PastRun]]
    of_all: Sequence[PastRun]
    left: Mapping[str, int] = field(default_factory=dict)
    beside: Mapping[str, Sequence[float]] = field(default_factory=dict)
    alike: Mapping[str, Sequence[float]] = field(default_factory=dict)
    default_limit: int = 86_400

    def is_default(self, limit: int) -> bool:
        """Return whether nobody chose this time limit. That of a running job is known to within seconds only."""
        return math.isclose(limit, self.default_limit, rel_tol=0.01)

    def draw(self, chance: random.Random, job_id: str, leaf: str, limit: int, ran: int) -> int:
        """Draw the remaining seconds of a run that has taken `ran` of at most `limit`."""
        if job_id in self.left:
            return max(min(int(self._left(chance, job_id)), limit - ran), 1)
        longer = [seconds for seconds in self.alike.get(job_id, ()) if seconds > ran]
        longer = longer or [seconds for seconds in self._by_limit(leaf, limit) if seconds > ran] or [limit]
        return max(min(int(chance.choice(longer)), limit) - ran, 1)

    def _left(self, chance: random.Random, job_id: str) -> float:
        training = self.left[job_id]
        if beside := self.beside.get(job_id):
            return training + chance.choice(beside)
        return training * chance.uniform(*EVALUATIONS_AND_SAVES) + chance.uniform(*END_SECONDS)

    def _by_limit(self, leaf: str, limit: int) -> Sequence[float]:
        """Return how long runs with this limit take.

        A limit that a user chose says how long the run is: the shares of such limits count. The default says nothing
        of the run: the lengths of past runs count as they are.
        """
        known = self.of_leaf.get(leaf, ())
        if len(known) < MIN_PAST_RUNS:
            known = self.of_all
        if len(known) < MIN_PAST_RUNS:
            return [share * limit for share in UNKNOWN]
        chosen = [run for run in known if not self.is_default(run.limit)]
        if len(chosen) < MIN_PAST_RUNS or self.is_default(limit):
            return [min(run.seconds, limit) for run in known]
        return [run.seconds / run.limit * limit for run in chosen]


def predict(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the P50 and P90 of the next run, in seconds, from those of like ones.

    The P90 of n >= 9 runs is the ceil(0.9 (n + 1))th smallest, which the next of exchangeable runs does not exceed with
    a probability of 90 % at least (V. Vovk et al., Algorithmic Learning in a Random World, 2005). The largest of fewer
    is exceeded more often, so the upper prediction limit of a lognormal distribution (G. Hahn and W. Meeker,
    Statistical Intervals, 1991) applies if it is longer; its spread starts from an assumed one.

    Raises statistics.StatisticsError without any.
    """
    ordered, count = sorted(seconds), len(seconds)
    p50 = statistics.median(ordered)
    if count >= EXACT_FROM:
        return p50, ordered[math.ceil(0.9 * (count + 1)) - 1]
    logs = [math.log(max(each, 1.0)) for each in ordered]
    mean = statistics.fmean(logs)
    squares = ASSUMED_RUNS * ASSUMED_SPREAD**2 + sum((each - mean) ** 2 for each in logs)
    spread = math.sqrt(squares / (ASSUMED_RUNS + count - 1))
    upper = mean + statistics.NormalDist().inv_cdf(0.9) * spread * math.sqrt(1 + 1 / count)
    return p50, max(math.exp(upper), ordered[-1])
