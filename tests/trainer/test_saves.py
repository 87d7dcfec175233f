"""Saves are streams: files that safetensors reads, in parts that are never joined, with few requests for URLs."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from tests.trainer.agent_api import TOKEN, AgentApi
from tests.trainer.runs import platform_run, tiny_training
from trainer.checkpoint.file import EncodedFile, entries_of
from trainer.checkpoint.state import Shard, Snapshot
from trainer.client.http import PlatformClient
from trainer.contract.cost import ENCRYPTING_PROCESS_BYTES, RankCost
from trainer.contract.encryption import Encryptor, new_keyset
from trainer.contract.manifest import PART_PLAINTEXT_BYTES, PARTS_IN_FLIGHT
from trainer.contract.parallelism import MeshSizes
from trainer.contract.run import PresignReply
from trainer.storage import encrypted
from trainer.storage.base import StorageError
from trainer.storage.encrypted import PARTS_ANNOUNCED, get_decrypted, put_encrypted, put_pieces
from trainer.storage.folder import FolderStorage
from trainer.storage.presigned import PresignedStorage

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def shard(tensor: torch.Tensor, name: str) -> Shard:
    return Shard(tensor, (0,) * tensor.ndim, tuple(tensor.shape), name)


def test_safetensors_reads_the_stream_of_every_type_and_shape() -> None:
    tensors = {f"model/{dtype}": torch.arange(15).reshape(3, 5).to(dtype) for dtype in DTYPES}
    tensors |= {
        "adam/step": torch.tensor(7.0),
        "model/empty": torch.empty(0, 4),
        "odd": torch.ones(3, dtype=torch.uint8),
    }
    tensors["model/view"] = torch.arange(24.0).reshape(4, 6).T
    own = {"rng/cpu": torch.get_rng_state()}
    file = EncodedFile({name: shard(tensor, name) for name, tensor in tensors.items()}, own)
    content = b"".join(file.pieces())
    assert len(content) == file.size
    found = load(content)
    assert found.keys() == tensors.keys() | own.keys()
    for name, tensor in (tensors | own).items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype, name
    assert {each.stored: each.shape for each in entries_of(content)}["model/view"] == (6, 4)
    for each in entries_of(content):
        assert content[each.begin : each.end] == bytes(
            (tensors | own)[each.stored].contiguous().view(-1).view(torch.uint8)
        )


@given(sizes=st.lists(st.integers(0, 300), max_size=12), part=st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_pieces_are_stored_as_the_joined_content_would_be(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], part: int
) -> None:
    pieces = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    content, encryptor = b"".join(pieces), Encryptor(new_keyset())
    storage = FolderStorage(tmp_path_factory.mktemp("store"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encrypted, "PART_PLAINTEXT_BYTES", part)
        streamed = put_pieces(storage, encryptor, "a/", "f", map(memoryview, pieces), len(content))
        joined = put_encrypted(storage, encryptor, "b/", "f", content)
    assert [each.plaintext_size for each in streamed.parts] == [each.plaintext_size for each in joined.parts]
    assert [each.key[2:] for each in streamed.parts] == [each.key[2:] for each in joined.parts]
    assert get_decrypted(storage, encryptor, streamed) == content


class CountingClient(PlatformClient):
    """A client that notes the keys of each request for URLs."""

    def presign(self, operation: str, keys: list[str]) -> PresignReply:
        self.asked = [*getattr(self, "asked", []), (operation, len(keys))]
        return super().presign(operation, keys)


def test_urls_are_requested_for_many_parts_together_and_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted, "PART_PLAINTEXT_BYTES", 10)
    run, keys, objects = platform_run(tiny_training())
    encryptor, content = Encryptor(new_keyset()), bytes(range(256)) * 3
    with AgentApi(run, keys, objects) as api:
        client = CountingClient(api.url, TOKEN)

        def wait(_: float) -> None:
            api.store_away = False

        storage = PresignedStorage(client, wait=wait)
        file = put_encrypted(storage, encryptor, "p/", "f", content)
        assert len(file.parts) == 77
        assert client.asked == [("put", PARTS_ANNOUNCED), ("put", 77 - PARTS_ANNOUNCED)]
        client.asked, api.store_away = [], True
        put_encrypted(storage, encryptor, "q/", "f", content[:30])
        assert client.asked[0] == ("put", 3)
        assert set(client.asked[1:]) == {("put", 1)}, "each part that failed has a new URL"
        assert get_decrypted(storage, encryptor, file) == content


class FullStorage(FolderStorage):
    """A store that refuses an object, and counts those that come at a time."""

    def __init__(self, root: Path, refused: str) -> None:
        super().__init__(root)
        self.refused, self.begun, self.most, self._now = refused, 0, 0, 0
        self._lock = threading.Lock()

    def announce(self, keys: Sequence[str]) -> None:
        pass

    def put(self, key: str, data: bytes) -> None:
        with self._lock:
            self.begun, self._now = self.begun + 1, self._now + 1
            self.most = max(self.most, self._now)
        try:
            if key.endswith(self.refused):
                raise StorageError(f"put of {key} has failed")
            super().put(key, data)
        finally:
            with self._lock:
                self._now -= 1


def test_a_part_that_cannot_be_stored_ends_the_save_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encrypted, "PART_PLAINTEXT_BYTES", 10)
    storage = FullStorage(tmp_path, "f-004.part")
    with pytest.raises(StorageError, match="put of p/f-004.part has failed"):
        put_encrypted(storage, Encryptor(new_keyset()), "p/", "f", bytes(1000))
    assert storage.begun <= 5 + 2 * PARTS_IN_FLIGHT
    assert storage.most <= PARTS_IN_FLIGHT


def test_a_snapshot_uses_its_memory_again_and_does_not_follow_the_state() -> None:
    live, snapshot = [torch.ones(1000), torch.zeros(())], Snapshot()
    shards = [shard(live[0], "model/w"), shard(live[1], "adam/step")]
    first = snapshot.take([*shards, Shard(live[0], (0,), (1000,), "model/other", is_mine=False)])
    assert first.keys() == {"model/w", "adam/step"}
    live[0].fill_(2.0)
    assert first["model/w"].tensor.eq(1.0).all()
    where = first["model/w"].tensor.data_ptr()
    second = snapshot.take(shards)
    assert second["model/w"].tensor.data_ptr() == where and second["model/w"].tensor.eq(2.0).all()


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), max_size=6),
)
@settings(max_examples=50, deadline=None)
def test_a_snapshot_has_tensors_of_every_type_and_shape(forms: list[tuple[torch.dtype, list[int]]]) -> None:
    live = {f"t{number}": torch.ones(shape).to(dtype) for number, (dtype, shape) in enumerate(forms)}
    found = Snapshot().take([shard(tensor, name) for name, tensor in live.items()])
    assert found.keys() == live.keys()
    for name, tensor in live.items():
        assert found[name].tensor.dtype == tensor.dtype and torch.equal(found[name].tensor, tensor)


@pytest.mark.parametrize(
    ("on_gpu", "parts"),
    [
        (True, PARTS_IN_FLIGHT * (2 * PART_PLAINTEXT_BYTES + ENCRYPTING_PROCESS_BYTES)),
        (False, 2 * PART_PLAINTEXT_BYTES),
    ],
)
def test_the_estimate_has_a_copy_of_the_state_and_the_parts_in_flight(on_gpu: bool, parts: int) -> None:
    memory = RankCost(tiny_training(), 300, MeshSizes(), 0, on_gpu=on_gpu).memory()
    assert memory.saves == memory.weights + memory.optimizer + parts
    half = RankCost(tiny_training(), 300, MeshSizes(replicate=2), 0, on_gpu=on_gpu).memory()
    assert half.saves == (memory.weights + memory.optimizer) // 2 + parts
