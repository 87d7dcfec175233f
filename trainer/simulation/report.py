"""Tables of simulated goodput: by size, interval, tiers, spares and recovery time, and beside published figures.

Each row says what it stands on: no run of these sizes was measured.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from trainer.simulation.engine import Activity, Result, simulate
from trainer.simulation.inputs import MEASURED_GPUS, PUBLISHED_GPUS, Inputs, overridden

SIZES = (8, 64, 512, 2048, 8192, 16_384)
INTERVALS = (60.0, 180.0, 600.0, 1800.0, 7200.0)
SPARES = (0, 1, 2, 4, 8)
RESTARTS = (5.0, 30.0, 60.0, 120.0, 300.0, 900.0)
TIERS: Mapping[str, Mapping[str, float | bool | None]] = {
    "stored only": {"shadow_interval": None, "has_peers": False},
    "shadow": {"has_peers": False},
    "shadow and peer": {"has_peers": True},
}


@dataclass(frozen=True)
class Row:
    """Results with some seeds. `name`: what is varied. `ground`: what they stand on."""

    name: str
    results: Sequence[Result]
    ground: str

    @property
    def goodput(self) -> float:
        """Return the mean goodput."""
        return fmean(result.goodput for result in self.results)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the least and the most goodput."""
        found = [result.goodput for result in self.results]
        return min(found), max(found)

    def share(self, activity: Activity) -> float:
        """Return the mean share of an activity."""
        return fmean(result.share(activity) for result in self.results)


@dataclass(frozen=True)
class Published:
    """A published goodput beside inputs that are like it. `at_least`, `at_most`: bounds of what is said, as shares.
    `unknown`: inputs that are not published, so that defaults or guesses take their place."""

    name: str
    gpus: int
    days: float
    said: str
    at_least: float
    at_most: float
    source: str
    given: Mapping[str, float | bool | None]
    unknown: str


_ONLY_ATTEMPTS = {"shadow_interval": None, "has_peers": False, "repeat": 0, "spares": 0}
PUBLISHED = (
    Published(
        "Llama 3 405B", 16_384, 54, "> 90 %, 466 interruptions, 47 of them planned", 0.90, 1.0,
        "arXiv:2407.21783, section 3.3", {**_ONLY_ATTEMPTS, "planned_hours": 16_384 * 54 * 24 / 47},
        "how long restarts took and how often checkpoints were saved",
    ),
    Published(
        "MegaScale", 10_240, 21, "> 90 %, over 100 restarts in several weeks", 0.90, 1.0, "arXiv:2402.15627",
        {
            **_ONLY_ATTEMPTS, "hours_between_failures": 10_240 * 21 * 24 / 100, "detect": 600, "detect_node": 600,
            "detect_hang": 600, "interval": 900, "new_attempt": 30,
        },
        "the number of weeks (3 here); detection under 10 minutes and the catch-up under 15 are taken as their limits",
    ),
    Published(
        "ByteRobust", 9600, 90, "up to 97 %", 0.90, 0.97, "arXiv:2509.16293",
        {"shadow_share": 0.001, "gpus_per_node": 16, "detect": 60, "detect_node": 60},
        "the rate of failures of that run; that of Llama 3 is taken",
    ),
    Published(
        "Meta RSC, large jobs", 1024, 330, "about 90 %, 7.9 h between failures", 0.85, 0.95, "arXiv:2410.21680",
        {**_ONLY_ATTEMPTS, "hours_between_failures": 7.9 * 1024, "interval": 3600, "new_attempt": 300},
        "interval and restart time (60 and 5 minutes here)",
    ),
)  # fmt: skip


def ground_of(gpus: int, inputs: Inputs) -> str:
    """Return what a result stands on: where it is extrapolated, the word is in it."""
    known = inputs.restart is not None and inputs.new_attempt is not None
    if gpus > PUBLISHED_GPUS:
        ground = "extrapolated beyond published sizes"
    elif known:
        ground = "given durations of recovery"
    elif gpus <= MEASURED_GPUS:
        ground = "own durations of recovery"
    elif gpus < 2048:
        ground = "extrapolated: between own and published durations"
    else:
        ground = "published durations of others"
    return f"{ground}; extrapolated: peer copies were not measured on GPUs" if inputs.has_peers else ground


def row(name: str, gpus: int, days: float, inputs: Inputs, seeds: int) -> Row:
    """Return the results for the seeds from 0 up."""
    return Row(name, [simulate(gpus, days, inputs, seed) for seed in range(seeds)], ground_of(gpus, inputs))


def table(kind: str, gpus: int, days: float, inputs: Inputs, seeds: int) -> list[Row]:
    """Return the rows of one of `size`, `interval`, `tiers`, `spares` and `restart`."""
    if kind == "size":
        return [row(f"{size:,} GPUs", size, days, inputs, seeds) for size in SIZES]
    variants: dict[str, Mapping[str, float | bool | None]]
    if kind == "interval":
        variants = {"as chosen": {"interval": None}, **{f"{each:.0f} s": {"interval": each} for each in INTERVALS}}
    elif kind == "tiers":
        variants = dict(TIERS)
    elif kind == "spares":
        variants = {f"spare nodes: {each}": {"spares": each} for each in SPARES}
    else:
        variants = {f"{each:.0f} s": {"restart": each} for each in RESTARTS}
    return [row(name, gpus, days, overridden(inputs, **given), seeds) for name, given in variants.items()]


def compared(inputs: Inputs, seeds: int) -> list[tuple[Published, Row]]:
    """Return the published figures beside what is simulated with inputs like theirs."""
    return [(each, row(each.name, each.gpus, each.days, overridden(inputs, **each.given), seeds)) for each in PUBLISHED]


def lines(rows: Iterable[Row]) -> list[str]:
    """Return a table as text. Shares in percent."""
    shown = [each for each in Activity if each is not Activity.PRODUCTIVE]
    heading = ["", "goodput", "of seeds", "interval", "failures", *(each.value for each in shown), "stands on"]
    cells = [heading]
    for each in rows:
        low, high = each.bounds
        failures = fmean(sum(result.causes.values()) for result in each.results)
        cells.append(
            [
                each.name, f"{each.goodput:.2%}", f"{low:.1%} to {high:.1%}", f"{each.results[0].interval:.0f} s",
                f"{failures:,.0f}", *(f"{each.share(activity):.2%}" for activity in shown), each.ground,
            ]
        )  # fmt: skip
    return _aligned(cells)


def compared_lines(found: Iterable[tuple[Published, Row]]) -> list[str]:
    """Return published figures beside simulated ones as text."""
    cells = [["", "GPUs", "days", "published", "simulated", "within", "not published", "source"]]
    for published, each in found:
        within = "yes" if published.at_least <= each.goodput <= published.at_most else "no"
        cells.append(
            [
                published.name, f"{published.gpus:,}", f"{published.days:g}", published.said, f"{each.goodput:.1%}",
                within, published.unknown, published.source,
            ]
        )  # fmt: skip
    return _aligned(cells)


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
