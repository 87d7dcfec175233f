"""What will happen in a run, drawn from its seed before it begins. Pure: the same seed is the same script.

Only the interleaving of processes is left to the machine; which job does what, which call to the backend goes wrong
and which service dies when for how long are all here.
"""

import random
from dataclasses import dataclass
from enum import StrEnum

FROZEN_SECONDS = 25.0
SERVICES = ("web", "worker", "beat", "valkey", "postgres")
TEN_MINUTES = 600.0


class End(StrEnum):
    """How an attempt's agent ends, when nobody asks it to."""

    COMPLETE = "complete"
    COMPLETE_UNTOLD = "complete_untold"  # only the marker in the store tells: the report is lost, the backend forgets
    DATA_ERROR = "data_error"
    STORAGE_ERROR = "storage_error"
    CRASH = "crash"  # the process is killed; the backend knows its exit status
    VANISH = "vanish"  # it is gone without a trace, in the backend too


class Twist(StrEnum):
    """What the user does to the job on its way."""

    NONE = "none"
    CANCEL = "cancel"
    PAUSE = "pause"


class Fault(StrEnum):
    """What happens to one call to the backend."""

    NONE = "none"
    AWAY = "away"  # refused, nothing done
    LOST = "lost"  # done, but the answer never arrives
    DOUBLED = "doubled"  # done twice; a listing is the one before, told again
    EMPTY = "empty"  # a listing without anything in it
    SLOW = "slow"  # answered, late
    TOO_SLOW = "too_slow"  # done after the caller has given up


@dataclass(frozen=True)
class JobScript:
    """One job. Its agents end as `ends` says, one after the other, and COMPLETE from then on."""

    number: int
    steps: int
    ends: tuple[End, ...]
    twist: Twist
    twist_after_seconds: float
    skew_seconds: float  # of its agents' clocks

    def end(self, ended_before: int) -> End:
        return self.ends[ended_before] if ended_before < len(self.ends) else End.COMPLETE


@dataclass(frozen=True)
class Outage:
    after_seconds: float  # since the platform had recovered from the one before
    service: str
    down_seconds: float
    frozen: bool = False  # stopped, and going on as if nothing had been: what it holds is stale by then


ENDS = {
    (End.COMPLETE,): 45,
    (End.COMPLETE_UNTOLD,): 10,
    (End.DATA_ERROR,): 10,
    (End.STORAGE_ERROR, End.COMPLETE): 10,
    (End.CRASH, End.COMPLETE): 10,
    (End.VANISH, End.COMPLETE): 10,
    (End.VANISH, End.CRASH, End.COMPLETE_UNTOLD): 5,
}
TWISTS = {Twist.NONE: 70, Twist.CANCEL: 15, Twist.PAUSE: 15}
FAULTS = {
    Fault.NONE: 80,
    Fault.AWAY: 4,
    Fault.LOST: 4,
    Fault.DOUBLED: 4,
    Fault.EMPTY: 3,
    Fault.SLOW: 4,
    Fault.TOO_SLOW: 1,
}


def jobs(
    seed: int, count: int, fewest_steps: int, most_steps: int, latest_twist_seconds: float = 20.0
) -> list[JobScript]:
    chance = random.Random(f"jobs {seed}")
    return [
        JobScript(
            number=number,
            steps=chance.randint(fewest_steps, most_steps),
            ends=_draw(chance, ENDS),
            twist=_draw(chance, TWISTS),
            twist_after_seconds=chance.uniform(0.0, latest_twist_seconds),
            skew_seconds=chance.choice([0.0, 0.0, -600.0, 600.0]),
        )
        for number in range(count)
    ]


def outages(seed: int, down_seconds: tuple[float, ...], gap_seconds: float) -> list[Outage]:
    """Each service killed once with each length, and the worker frozen for longer than a lease, in any order."""
    chance = random.Random(f"outages {seed}")
    pairs = [(service, seconds) for service in SERVICES for seconds in down_seconds]
    kinds = [(service, seconds, False) for service, seconds in pairs]
    kinds += [("worker", FROZEN_SECONDS, True)] if max(down_seconds) >= FROZEN_SECONDS else []
    chance.shuffle(kinds)
    return [Outage(chance.uniform(0.2, 2.0) * gap_seconds, *kind) for kind in kinds]


def fault(seed: int, act: str, number: int) -> tuple[Fault, float]:
    """Of the `number`th call of this kind, and how many seconds a slow one takes."""
    chance = random.Random(f"fault {seed} {act} {number}")
    drawn: Fault = _draw(chance, FAULTS)
    if drawn is Fault.EMPTY and act != "observe":
        drawn = Fault.LOST
    return drawn, chance.uniform(0.5, 3.0)


def _draw(chance: random.Random, weighted: dict):
    return chance.choices(list(weighted), weights=list(weighted.values()))[0]
