"""What was special in a step: the layers in which its gradient was large, its data, and its worst micro-batch."""

from collections import defaultdict
from dataclasses import dataclass
from math import inf, isfinite

from trainer.data.loader import Loader
from trainer.reporting.layers import Layers
from trainer.reporting.stats import StepStats

_LISTED = 8  # sequences that a text names


@dataclass(frozen=True)
class StepDetails:
    """`layers`: those with the largest shares of the gradient (`Layers.largest`). `first_sequence`, `last_sequence`:
    numbers in the order of the run's data. `worst_batch`: the highest mean loss of a micro-batch, and the rows of its
    sequences, as text."""

    layers: str
    first_sequence: int
    last_sequence: int
    worst_batch: str


def describe_step(stats: StepStats, layers: Layers, loader: Loader) -> StepDetails:
    """Return what a finished step had, by its statistics; the same on all ranks."""
    losses = [loss if isfinite(loss) else inf for loss in stats.batch_losses]
    worst = losses.index(max(losses))
    found: dict[str, list[int]] = defaultdict(list)
    places = loader.places(stats.step, worst)
    for source, shard, row in places[:_LISTED]:
        found[f"{source} {shard}"].append(row)
    rows = "; ".join(f"{shard}: {', '.join(map(str, each))}" for shard, each in found.items())
    more = f" and {len(places) - _LISTED} more" if len(places) > _LISTED else ""
    return StepDetails(
        layers.largest(stats.layer_squares),
        *loader.sequences(stats.step),
        f"{stats.batch_losses[worst]:.4g} in rows of {rows}{more}",
    )
