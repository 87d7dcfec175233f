"""The run in virtual time: training, saves, failures and what follows them, to the microsecond.

All of the GPUs step together, so that a failure of one stops all. Every microsecond is of one activity, and work that a
restart repeats becomes `lost` when it is known, so that the activities sum to the time of the run exactly.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from trainer.agent.ladder import Rung, Situation, choose_rung
from trainer.contract.checkpoint_interval import best_interval
from trainer.contract.run import EndClass
from trainer.simulation.inputs import LLAMA_3_CAUSES, PLANNED, Cause, Inputs, Tier

_MICRO = 1_000_000
_HOUR = 3600 * _MICRO


class Activity(StrEnum):
    """What the time of a run is spent on. `DETECT`: a failure is not known yet. `RESTORE`: the state is read."""

    PRODUCTIVE = "productive"
    SAVES = "saves"
    COPIES = "copies"
    LOST = "lost"
    DETECT = "detect"
    RESTART = "restart"
    NEW_ATTEMPT = "new attempt"
    RESTORE = "restore"


@dataclass
class Result:
    """What became of a run. `times` in microseconds; they sum to `duration`. `interval`: of stored checkpoints, in
    seconds. `rungs`: how often each was taken; `tiers`: how often the state was read from each."""

    gpus: int
    duration: int
    interval: float
    times: Counter[Activity] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    rungs: Counter[Rung] = field(default_factory=Counter)
    tiers: Counter[Tier] = field(default_factory=Counter)
    saves: int = 0

    @property
    def goodput(self) -> float:
        """Return the share of the time in which steps were done that count."""
        return self.times[Activity.PRODUCTIVE] / self.duration

    def share(self, activity: Activity) -> float:
        """Return the share of an activity."""
        return self.times[activity] / self.duration


def simulate(gpus: int, days: float, inputs: Inputs, seed: int = 0) -> Result:
    """Return what becomes of a run of `gpus` GPUs in `days`. The same arguments give the same result.

    Raise ValueError if there is no GPU or no time.
    """
    if gpus < 1 or days <= 0:
        raise ValueError(f"{gpus} GPUs for {days} days: give at least one GPU and more than 0 days")
    return _Run(gpus, round(days * 24 * _HOUR), inputs, seed).result()


class _Run:
    """A run. Positions are microseconds of training without any overhead, from the begin of the run.

    `_work`: the position. `_memory_from`: the position from which the copies in memory are complete.
    `_stored`: the position of the newest stored checkpoint; `_saving`: position and end of the one that is written.
    """

    def __init__(self, gpus: int, duration: int, inputs: Inputs, seed: int) -> None:
        self._gpus, self._inputs = gpus, inputs
        self._chance = random.Random(seed)  # noqa: S311 - a repeatable run, no secret
        mean_seconds = 3600.0 * inputs.hours_between_failures / gpus
        interval = inputs.interval or best_interval(inputs.save_cost, mean_seconds, inputs.save_seconds)
        self._result = Result(gpus, duration, interval)
        self._interval = _ticks(interval)
        self._copies = (inputs.shadow_share if inputs.shadow_interval else 0.0) + (
            inputs.peer_share if inputs.has_peers else 0.0
        )
        self._now = self._work = self._stored = self._memory_from = 0
        self._next_save = self._interval
        self._saving: tuple[int, int] | None = None
        self._spares = inputs.spares
        self._restarts: Counter[int] = Counter()

    def result(self) -> Result:
        """Run to the end."""
        failures = self._next_failure()
        end = self._result.duration
        while self._now < end:
            at, cause = failures
            self._train(min(at, end))
            if self._now >= end:
                break
            failures = self._next_failure()
            self._recover(cause, failures[0])
        return self._result

    def _next_failure(self) -> tuple[int, Cause]:
        """Return when the next interruption is, and of what kind: a Poisson process."""
        unexpected = self._gpus / self._inputs.hours_between_failures
        planned = self._gpus / self._inputs.planned_hours if self._inputs.planned_hours else 0.0
        at = self._now + int(self._chance.expovariate(unexpected + planned) * _HOUR) + 1
        if self._chance.random() * (unexpected + planned) < planned:
            return at, PLANNED
        counts = [cause.count for cause in LLAMA_3_CAUSES]
        return at, self._chance.choices(LLAMA_3_CAUSES, counts)[0]

    def _spend(self, activity: Activity, duration: int, until: int) -> bool:
        """Spend time, at most up to `until`. Return whether all of it was spent."""
        spent = min(duration, until - self._now)
        self._result.times[activity] += spent
        self._now += spent
        return spent == duration

    def _train(self, until: int) -> None:
        """Train, and save, up to `until`."""
        while self._now < until:
            needed = self._next_save - self._work
            wall = min(until - self._now, needed + int(needed * self._copies))
            work = min(needed, int(wall / (1.0 + self._copies)))
            if wall == needed + int(needed * self._copies):
                work = needed
            self._work += work
            self._spend(Activity.PRODUCTIVE, work, until)
            self._spend(Activity.COPIES, wall - work, until)
            if self._work >= self._next_save:
                self._save(until)

    def _save(self, until: int) -> None:
        """Begin a stored checkpoint, after the one that is still written, unless `until` comes first. What it costs is
        spent when it begins."""
        if self._saving is not None and not self._spend(Activity.SAVES, max(0, self._saving[1] - self._now), until):
            return
        begun = self._now
        if self._spend(Activity.SAVES, _ticks(self._inputs.save_cost), until):
            self._finish_save(self._now)
            self._saving = (self._work, max(self._now, begun + _ticks(self._inputs.save_seconds)))
            self._result.saves += 1
            self._next_save = self._work + self._interval

    def _finish_save(self, now: int) -> None:
        """Count the checkpoint that was written by `now` as stored."""
        if self._saving is not None and self._saving[1] <= now:
            self._stored, self._saving = self._saving[0], None

    def _recover(self, cause: Cause, interrupted_at: int) -> None:
        """Recover from an interruption that came now. If the next one comes before the end, it recovers from that."""
        inputs, result = self._inputs, self._result
        until = min(interrupted_at, result.duration)
        result.causes[cause.name] += 1
        if cause.saves_first:
            if not self._spend(Activity.SAVES, _ticks(inputs.stall + inputs.save_seconds), until):
                return
            self._stored, self._saving = self._work, None
        self._finish_save(self._now)
        rung = self._choose(cause)
        tier = self._go_back(rung, cause)
        if not self._spend(Activity.DETECT, self._detection(cause), until):
            return
        is_new = rung is Rung.END
        activity = Activity.NEW_ATTEMPT if is_new else Activity.RESTART
        seconds = inputs.new_attempt_seconds(self._gpus) if is_new else inputs.restart_seconds(self._gpus)
        if not self._spend(activity, _ticks(seconds), until):
            return
        if tier is not Tier.SHADOW:
            self._spend(Activity.RESTORE, _ticks(inputs.state_gb / inputs.read_rate), until)

    def _choose(self, cause: Cause) -> Rung:
        """Return the rung that agents take, and use up what it needs."""
        node = self._chance.randrange(max(1, self._gpus // self._inputs.gpus_per_node))
        has_spares = self._inputs.spares > 0
        situation = Situation(
            cause.end_class,
            restarts=self._restarts[node],
            max_restarts=self._inputs.repeat + self._inputs.spares,
            # Of a lost node the others are asked: they follow, if a spare node takes its place.
            is_round_outdated=cause.loses_node and self._spares > 0,
            has_spares=has_spares,
        )
        rung = choose_rung(situation)
        if cause.loses_node and rung is not Rung.FOLLOW:
            rung = Rung.END
        if rung is Rung.LEAVE and self._spares == 0:
            rung = Rung.END
        self._result.rungs[rung] += 1
        if rung is Rung.RESTART:
            self._restarts[node] += 1
        elif rung in (Rung.LEAVE, Rung.FOLLOW):
            self._spares -= 1
            self._restarts[node] = 0  # it is another node
        elif rung is Rung.END:
            self._spares = self._inputs.spares
            self._restarts.clear()
        return rung

    def _go_back(self, rung: Rung, cause: Cause) -> Tier:
        """Go back to the newest state that is left. Return where it is."""
        position, tier = self._stored, Tier.STORED
        if rung is not Rung.END and self._inputs.shadow_interval:
            # The step of the failure and the one before it, of which the copy is not complete.
            interval = _ticks(self._inputs.shadow_interval)
            copied = (self._work // interval - 1) * interval
            is_here = rung is Rung.RESTART and not cause.loses_node
            if copied >= max(self._memory_from, position) and (is_here or self._inputs.has_peers):
                position, tier = copied, Tier.SHADOW if is_here else Tier.PEER
        if tier is Tier.STORED:
            self._memory_from = position
        lost = self._work - position
        self._result.times[Activity.PRODUCTIVE] -= lost
        self._result.times[Activity.LOST] += lost
        self._result.tiers[tier] += 1
        self._work, self._saving = position, None
        self._next_save = position + self._interval
        return tier

    def _detection(self, cause: Cause) -> int:
        inputs = self._inputs
        if cause.saves_first:
            return 0
        if cause.end_class is EndClass.HANG:
            return _ticks(inputs.detect_hang)
        return _ticks(inputs.detect_node if cause.loses_node else inputs.detect)


def _ticks(seconds: float) -> int:
    return int(seconds * _MICRO)
