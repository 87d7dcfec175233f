"""What really happened, noted by the world and the user of a run; the checker holds the record against it."""

import threading
import time
from dataclasses import dataclass, field


@dataclass
class Life:
    """One agent that really ran. `end`: the class it told, or vanished, killed, over (the platform ended it first)."""

    name: str
    began: float  # monotonic seconds
    ended: float | None = None
    ended_at: float = 0.0  # unix time
    job_id: str = ""
    attempt_id: str = ""
    number: int = 0
    end: str = ""
    checkpoints: int = 0
    models: int = 0


@dataclass
class Wanted:
    """One job as its user knows it. `id` is empty while no submit was answered."""

    script_number: int
    key: str
    steps: int
    id: str = ""
    cancel_accepted: bool = False
    pause_accepted: bool = False
    resume_accepted: bool = False


@dataclass
class Ledger:
    jobs: list[Wanted] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)  # acknowledged batches that the platform then asked for again
    lock: threading.Lock = field(default_factory=threading.Lock)

    def born(self, name: str) -> Life:
        life = Life(name, began=time.monotonic())
        with self.lock:
            self.lives.append(life)
        return life

    def died(self, life: Life, end: str) -> None:
        with self.lock:
            life.end, life.ended, life.ended_at = end, time.monotonic(), time.time()

    def ended_before(self, job_id: str, life: Life) -> int:
        """How many scripted ends of the job were played. One that was asked to stop has played none."""
        with self.lock:
            return sum(
                1
                for other in self.lives
                if other.job_id == job_id and other is not life and other.ended and other.end not in UNSCRIPTED
            )

    def living(self) -> list[Life]:
        with self.lock:
            return [life for life in self.lives if life.ended is None]


UNSCRIPTED = frozenset({"stopped", "over", "platform_unreachable", ""})
