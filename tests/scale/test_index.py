"""The index of a checkpoint of thousands of ranks is small, and names just the files that a rank needs."""

import pytest

from tests.scale.checkpoints import entries_of_rank, layouts_of_ranks, shards_of_rank, training_of
from trainer.checkpoint.file import Entry
from trainer.checkpoint.index import Index, describe, encode
from trainer.checkpoint.state import Shard

MAX_BYTES_OF_RANK = 2_000  # 20 MB of 10,000 ranks


@pytest.mark.parametrize("parallelism", [{"tensor": 8, "pipeline": 16}, {"tensor": 8, "pipeline": 8, "replicate": 16}])
def test_the_index_has_few_bytes_of_each_rank_and_names_the_files_that_one_needs(parallelism: dict[str, int]) -> None:
    ranks = 1_024
    files, shared, entries, needed = [], {}, [], {}
    for rank, layouts in layouts_of_ranks(*training_of(ranks, parallelism)):
        entries.append(entries_of_rank(rank, layouts))
        description, alike = describe(entries[-1])
        files.append(description)
        shared[description.shared] = alike
        if rank in (0, 777, ranks - 1):
            needed[rank] = shards_of_rank(layouts)
    content = encode(files, shared)
    assert len(content) < MAX_BYTES_OF_RANK * ranks / 4, "a quarter of the limit: more ranks differ in more"
    assert len(shared) < ranks / 2
    index = Index(content)
    for rank, shards in needed.items():
        found = index.files_for(shards)
        assert found == [number for number in range(ranks) if has_some(entries[number], shards)]
        assert rank in found or not entries[rank]
        assert index.entries(rank) == entries[rank]


def has_some(entries: list[Entry], shards: list[Shard]) -> bool:
    """Whether a file has a box of some dimensions that one of the shards needs."""
    named = {shard.stored: shard for shard in shards if shard.shape}
    return any(entry.needed([named[entry.stored]]) is not None for entry in entries if entry.stored in named)
