"""The index of a checkpoint: any boxes are read from any others, and only the parts that have something of them."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.checkpoint.file import EncodedFile
from trainer.checkpoint.index import INDEX_NAME, Index, describe, encode
from trainer.checkpoint.reader import read_into
from trainer.checkpoint.state import Shard
from trainer.contract.encryption import Encryptor, new_keyset
from trainer.contract.manifest import StoredFile
from trainer.errors import TrainerError
from trainer.storage import encrypted
from trainer.storage.encrypted import put_encrypted, put_pieces, read_ranges
from trainer.storage.folder import FolderStorage

Box = tuple[tuple[int, ...], tuple[int, ...]]
RNG = "rng/cpu"


class Counting(FolderStorage):
    """A store that notes which objects are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: list[str] = []

    def get(self, key: str) -> bytes:
        self.read.append(key)
        return super().get(key)


@st.composite
def splits(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Boxes, some of them perhaps empty, that together are the tensor."""
    boxes: list[Box] = [((), ())]
    for size in shape:
        cuts = sorted(draw(st.lists(st.integers(0, size), max_size=2)))
        bounds = list(zip([0, *cuts], [*cuts, size], strict=True))
        boxes = [((*low, begin), (*sizes, end - begin)) for low, sizes in boxes for begin, end in bounds]
    return boxes


def cut(whole: torch.Tensor, name: str, box: Box) -> Shard:
    part = whole
    for dimension, (offset, size) in enumerate(zip(*box, strict=True)):
        part = part.narrow(dimension, offset, size)
    return Shard(part, box[0], tuple(whole.shape), name)


def store(storage: FolderStorage, encryptor: Encryptor, ranks: list[list[Shard]], *, index: bool) -> list[StoredFile]:
    """Store the file of each rank, and the index, as a save does."""
    files, descriptions, shared = [], [], {}
    for number, shards in enumerate(ranks):
        content = EncodedFile({each.stored: each for each in shards}, {RNG: torch.tensor([number])})
        files.append(put_pieces(storage, encryptor, "c/", f"rank{number}", content.pieces(), content.size))
        description, alike = describe(content.entries)
        descriptions.append(description)
        shared[description.shared] = alike
    if index:
        files.append(put_encrypted(storage, encryptor, "c/", INDEX_NAME, encode(descriptions, shared)))
    return files


@given(
    data=st.data(),
    shapes=st.lists(st.lists(st.integers(1, 7), max_size=3).map(tuple), min_size=1, max_size=4),
    part=st.integers(20, 3000),
    index=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_any_split_is_read_from_any_other(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, shapes: list[tuple[int, ...]], part: int, index: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    wholes = {f"model/{number}": torch.rand(shape, generator=generator) for number, shape in enumerate(shapes)}
    world = data.draw(st.integers(1, 4))
    ranks: list[list[Shard]] = [[] for _ in range(world)]
    for name, whole in wholes.items():
        for number, box in enumerate(data.draw(splits(tuple(whole.shape)))):
            shard = cut(whole, name, box)
            # A file has one box of a tensor.
            ranks.append([shard]) if number >= world else ranks[number].append(shard)
    storage, encryptor = Counting(tmp_path_factory.mktemp("store")), Encryptor(new_keyset())
    with pytest.MonkeyPatch.context() as patch:
        # Old files are found by their headers, which are in their first parts.
        patch.setattr(encrypted, "PART_PLAINTEXT_BYTES", part if index else part + 2000)
        files = store(storage, encryptor, ranks, index=index)
    wanted = [
        cut(wholes[name], name, data.draw(st.sampled_from(data.draw(splits(tuple(wholes[name].shape))))))
        for name in wholes
    ]
    targets = [Shard(torch.full_like(each.tensor, -1.0), each.offsets, each.shape, each.stored) for each in wanted]
    mine = data.draw(st.none() | st.integers(0, world - 1))
    missing, own = read_into(targets, files, storage, encryptor, mine)
    assert not missing
    for target, right in zip(targets, wanted, strict=True):
        assert torch.equal(target.tensor, right.tensor)
    assert own == ({RNG: torch.tensor([mine])} if mine is not None else {})


def rows_of_ranks(ranks: int, rows: int) -> tuple[torch.Tensor, list[list[Shard]]]:
    """A tensor of which each rank has some rows, with a step counter that all have."""
    whole, step = torch.arange(ranks * rows * 64.0).reshape(-1, 64), torch.tensor(3.0)
    found = [
        [cut(whole, "model/w", ((number * rows, 0), (rows, 64))), Shard(step, (), (), "step/w")]
        for number in range(ranks)
    ]
    return whole, found


def test_only_the_parts_are_read_that_have_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted, "PART_PLAINTEXT_BYTES", 2**12)  # 16 rows of 256 bytes
    storage, encryptor = Counting(tmp_path), Encryptor(new_keyset())
    whole, ranks = rows_of_ranks(8, 64)
    files = store(storage, encryptor, ranks, index=True)
    same = [Shard(torch.zeros_like(each.tensor), each.offsets, each.shape, each.stored) for each in ranks[5]]
    assert read_into(same, files, storage, encryptor, 5)[0] == []
    assert {key.rpartition("-")[0] for key in storage.read} == {"c/index", "c/rank5"}, "all ranks have the step counter"
    storage.read.clear()
    few = cut(torch.zeros_like(whole), "model/w", ((100, 0), (4, 64)))  # in rank 1's rows 36 to 40
    assert read_into([few], files, storage, encryptor, None)[0] == []
    assert torch.equal(few.tensor, whole[100:104])
    assert [key.rpartition("-")[0] for key in storage.read] == ["c/index", "c/rank1"], "one part of five"


def test_a_rank_with_no_rows_of_a_tensor_reads_its_step_counter(tmp_path: Path) -> None:
    storage, encryptor = Counting(tmp_path), Encryptor(new_keyset())
    _, ranks = rows_of_ranks(4, 2)
    files = store(storage, encryptor, ranks, index=True)
    empty, step = Shard(torch.zeros(0, 64), (8, 0), (8, 64), "model/w"), Shard(torch.tensor(0.0), (), (), "step/w")
    assert read_into([empty, step], files, storage, encryptor, None)[0] == []
    assert step.tensor.item() == 3.0 and storage.read == ["c/index-000.part", "c/rank0-000.part"]


@pytest.mark.parametrize("index", [True, False])
def test_another_shape_and_a_missing_tensor_are_found(tmp_path: Path, index: bool) -> None:
    storage, encryptor = Counting(tmp_path), Encryptor(new_keyset())
    _, ranks = rows_of_ranks(2, 4)
    files = store(storage, encryptor, ranks, index=index)
    wider = Shard(torch.zeros(8, 65), (0, 0), (8, 65), "model/w")
    with pytest.raises(TrainerError, match=r"model/w has shape \[8, 64\], this model's \[8, 65\]"):
        read_into([wider], files, storage, encryptor, None)
    unknown = Shard(torch.zeros(3), (0,), (3,), "model/unknown")
    assert read_into([unknown], files, storage, encryptor, None)[0] == [unknown]


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), data=st.data(), in_flight=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_ranges_are_those_of_the_joined_content(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject, in_flight: int
) -> None:
    content = bytes(range(sum(sizes)))
    storage, encryptor = Counting(tmp_path_factory.mktemp("store")), Encryptor(new_keyset())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encrypted, "PART_PLAINTEXT_BYTES", data.draw(st.integers(1, 12)))
        file = put_encrypted(storage, encryptor, "c/", "f", content)
    ends = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    ranges = list(zip(ends[::2], ends[1::2], strict=False))
    found = list(read_ranges(storage, encryptor, file, ranges, in_flight))
    assert found == [content[begin:end] for begin, end in ranges]
    size = file.parts[0].plaintext_size
    assert sorted(storage.read) == sorted(
        {file.parts[byte // size].key for begin, end in ranges for byte in range(begin, end)}
    )
    with pytest.raises(ValueError, match=f"f has {len(content)} bytes"):
        list(read_ranges(storage, encryptor, file, [(0, len(content) + 1)]))


def test_an_index_gives_the_entries_of_each_file() -> None:
    _, ranks = rows_of_ranks(3, 2)
    files = [EncodedFile({each.stored: each for each in rank}, {RNG: torch.ones(5)}) for rank in ranks]
    described = [describe(file.entries) for file in files]
    assert len({alike for _, alike in described}) == 1, "they differ in offsets alone"
    index = Index(encode([one for one, _ in described], {one.shared: alike for one, alike in described}))
    assert [index.entries(number) for number in range(3)] == [file.entries for file in files]
