"""The nodes of a run share the shards of a window: each fetches its part of them, whatever the number of ranks."""

import numpy as np
import pytest

from trainer.data.corpus import Corpus
from trainer.data.mixture import Mixture
from trainer.data.sampler import Sampler, split_range

ROWS = 4096  # of a shard: 16 Mi tokens in sequences of 4,096


def corpus_of(weights: list[float], shards: int, window: int) -> Corpus:
    """Return the order of a mixture of sources with `shards` shards each, without their files."""
    made = Corpus.__new__(Corpus)
    made._mixture = Mixture(weights)
    made._samplers = [Sampler([ROWS] * shards, 1, str(number), window) for number in range(len(weights))]
    return made


@pytest.mark.parametrize(
    ("weights", "nodes", "window", "most"),
    [([1.0], 64, 64, 3), ([1.0], 1250, 1024, 3), ([1.0], 1250, 8, 2), ([0.6, 0.3, 0.1], 64, 64, 3)],
)
def test_a_node_reads_few_shards_of_a_window(weights: list[float], nodes: int, window: int, most: int) -> None:
    sequences, steps = 8 * nodes, 32  # one sequence a GPU
    corpus = corpus_of(weights, 2 * window, window)
    read: list[set[tuple[int, int]]] = [set() for _ in range(nodes)]
    for step in np.linspace(0, window * ROWS // sequences - 1, steps).astype(int).tolist():  # all of one window
        samples = np.arange(step * sequences, (step + 1) * sequences)
        order = corpus.in_shard_order(samples)
        assert set(order.tolist()) == set(samples.tolist())
        places = corpus.places(order)
        for node in range(nodes):
            start, stop = split_range(sequences, nodes, node)
            read[node] |= {(source, shard) for source, shard, _ in places[start:stop]}
    counts = np.array([len(found) for found in read]) / len(weights)
    # The k-th of n sequences lies within 1 / sqrt(n) of k / n of the window: of 1,024 shards, within ten.
    print(f"{nodes} nodes, window {window}: mean {counts.mean():.1f} shards, most {counts.max():.1f}")
    assert counts.mean() <= most + 2 * window * sequences**-0.5
