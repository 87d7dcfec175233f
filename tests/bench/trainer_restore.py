"""Restoring a state from each tier of checkpoints, beside what its source allows, and torch's own loaders.

`python -m tests.bench.trainer_restore [--megabytes 1200] [--rounds 3]`

MB/s of one process, medians, the tiers in turns; each restore ends with the state in the tensors that are trained, and
has verified what it read.

- `shadow`: the node's memory: the digest, then a copy. Source: the copy alone.
- `peer`: the memory of another agent, in another process, by the loopback interface. Source: its bytes by a socket,
  received and dropped.
- `stored, object store`: the object store of the local stack, in another process, by presigned URLs; decrypted. Source:
  the same objects, fetched and dropped.
- `stored, folder`: files, decrypted. Source: the same files, read and dropped.
- `torch`: `torch.distributed.checkpoint.load` and `torch.load` of the same state, from a folder, not encrypted.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import boto3
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from tests.bench.trainer_replicas import SECRET, serve
from tests.slurm.processes import free_ports
from trainer.checkpoint.file import EncodedFile
from trainer.checkpoint.index import INDEX_NAME, describe, encode
from trainer.checkpoint.reader import read_into
from trainer.checkpoint.state import Shard
from trainer.contract.encryption import Encryptor, new_keyset
from trainer.contract.manifest import StoredFile
from trainer.contract.run import PresignedUrl, PresignReply
from trainer.resilience.peer_link import fetch, push
from trainer.resilience.replicas import CopyId
from trainer.resilience.shadow_memory import ShadowMemory, digest_of
from trainer.storage.base import Storage
from trainer.storage.encrypted import put_encrypted, put_pieces
from trainer.storage.folder import FolderStorage
from trainer.storage.presigned import PresignedStorage

TENSOR_BYTES = 25_000_000
ACCESS_KEY, SECRET_KEY, BUCKET = "bench:bench", "bench-secret", "bench"
START_SECONDS = 60
Restore = Callable[[], object]


@dataclass(frozen=True)
class Tier:
    """`restore` fills the trained tensors; `source` only reads what that reads."""

    restore: Restore
    source: Restore | None = None


class BucketUrls:
    """Presigned URLs of a bucket, as the platform gives them."""

    def __init__(self, endpoint: str) -> None:
        self._client = boto3.client(
            "s3", endpoint_url=endpoint, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )  # fmt: skip

    def presign(self, operation: str, keys: list[str]) -> PresignReply:
        urls = [
            self._client.generate_presigned_url(f"{operation}_object", {"Bucket": BUCKET, "Key": key}) for key in keys
        ]
        until = datetime.now(UTC) + timedelta(hours=1)
        return PresignReply(
            urls=[PresignedUrl(key=key, url=url, expires_at=until) for key, url in zip(keys, urls, strict=True)]
        )


def in_memory(live: list[torch.Tensor]) -> Tier:
    """A copy in the memory that the node's agent holds."""
    memory = ShadowMemory.create("bench-shadow")
    assert memory is not None
    size = sum(tensor.nbytes for tensor in live)
    memory.open(size)
    flat = torch.frombuffer(memory.data(0), dtype=torch.uint8)[:size].view(torch.float32)
    views = list(flat.split([tensor.numel() for tensor in live]))
    torch._foreach_copy_(views, live)
    digest = digest_of(memory.data(0)[:size])

    def restore() -> None:
        assert digest_of(memory.data(0)[:size]) == digest
        torch._foreach_copy_(live, views)

    return Tier(restore, lambda: torch._foreach_copy_(live, views))


def of_peer(live: list[torch.Tensor]) -> Iterator[Tier]:
    """A copy that another node's agent holds."""
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    agent = context.Process(target=serve, args=(writer,), daemon=True)
    agent.start()
    address, size = ("127.0.0.1", reader.recv()), sum(tensor.nbytes for tensor in live)
    memory = ShadowMemory.create("bench-peer")
    assert memory is not None
    memory.open(size)
    flat = torch.frombuffer(memory.data(0), dtype=torch.uint8)[:size].view(torch.float32)
    views = list(flat.split([tensor.numel() for tensor in live]))
    torch._foreach_copy_(views, live)
    digest = digest_of(memory.data(0)[:size])
    push(address, SECRET, memory, 0, size, {"rank": 0, "round": 1, "text": "{}", "digest": digest, "copy": [0, 0, 1]})
    sender = context.Process(target=send_bytes, args=(writer, size), daemon=True)
    sender.start()
    port = reader.recv()

    def restore() -> None:
        fetch(address, SECRET, 0, CopyId(0, 0, 1), memory.data(0)[:size])
        assert digest_of(memory.data(0)[:size]) == digest
        torch._foreach_copy_(live, views)

    def receive() -> None:
        into, at = memory.data(1)[:size], 0
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while at < size:
                at += connection.recv_into(into[at:])

    yield Tier(restore, receive)
    for process in (agent, sender):
        process.kill()
        process.join()


def send_bytes(report: Connection, size: int) -> None:
    """Send so many bytes to each that connects."""
    content = bytes(size)
    with socket.create_server(("127.0.0.1", 0)) as server:
        report.send(server.getsockname()[1])
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(content)


def stored(live: list[torch.Tensor], storage: Storage) -> Tier:
    """A stored checkpoint of one rank."""
    encryptor = Encryptor(new_keyset())
    shards = [Shard(tensor, (0,), tuple(tensor.shape), f"model/{number}") for number, tensor in enumerate(live)]
    file = EncodedFile({shard.stored: shard for shard in shards}, {})
    rank_file = put_pieces(storage, encryptor, "checkpoint/", "rank0", file.pieces(), file.size)
    described, shared = describe(file.entries)
    index = put_encrypted(
        storage, encryptor, "checkpoint/", INDEX_NAME, encode([described], {described.shared: shared})
    )
    files: list[StoredFile] = [rank_file, index]

    def restore() -> None:
        missing, _ = read_into(shards, files, storage, encryptor, None)
        assert not missing

    def read() -> None:
        for part in rank_file.parts:
            storage.get(part.key)

    return Tier(restore, read)


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[PresignedStorage]:
    """The local stack's object store, in a process of its own."""
    (port,) = free_ports(1)
    environment = {
        **os.environ, "ATHANOR_S3_ACCESS_KEY": ACCESS_KEY, "ATHANOR_S3_SECRET_KEY": SECRET_KEY,
        "ATHANOR_S3_BUCKET": BUCKET,
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-m", "deploy.local.object_store", str(folder), str(port)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _listens(port):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError("the object store does not start")
        yield PresignedStorage(BucketUrls(f"http://127.0.0.1:{port}"))
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.2):
        return True
    return False


def of_torch(live: list[torch.Tensor], folder: Path) -> dict[str, Tier]:
    state = {str(number): tensor for number, tensor in enumerate(live)}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dcp.save(state, checkpoint_id=folder / "dcp")
    torch.save(state, folder / "state.pt")

    def load() -> None:
        for name, tensor in torch.load(folder / "state.pt", weights_only=True).items():
            state[name].copy_(tensor)

    return {
        "torch.distributed.checkpoint.load": Tier(lambda: dcp.load(state, checkpoint_id=folder / "dcp")),
        "torch.load": Tier(load),
    }


def measure(megabytes: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return MB/s by tier, and of its source."""
    live = [torch.randn(TENSOR_BYTES // 4) for _ in range(megabytes * 10**6 // TENSOR_BYTES)]
    size = sum(tensor.nbytes for tensor in live) / 1e6
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(object_store(folder / "objects"))
        tiers = {
            "shadow": in_memory(live),
            "peer": stack.enter_context(contextlib.contextmanager(of_peer)(live)),
            "stored, object store": stored(live, store),
            "stored, folder": stored(live, FolderStorage(folder / "files")),
            **of_torch(live, folder),
        }
        expected = [tensor.clone() for tensor in live]
        taken: dict[str, dict[str, list[float]]] = {name: {"restore": [], "source": []} for name in tiers}
        for _ in range(rounds):
            for name, tier in tiers.items():
                for kind, act in (("restore", tier.restore), ("source", tier.source)):
                    if act is None:
                        continue
                    if kind == "restore":
                        torch._foreach_zero_(live)
                    begin = time.perf_counter()
                    act()
                    taken[name][kind].append(size / (time.perf_counter() - begin))
                assert all(map(torch.equal, live, expected)), name
        dist.destroy_process_group()
    return {name: {kind: statistics.median(rates) for kind, rates in of.items() if rates} for name, of in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} before")
    found = measure(arguments.megabytes, arguments.rounds)
    print(f"{'':<36}{'restore':>12}{'source':>12}{'share':>8}")
    for name, of in found.items():
        source = f"{of['source']:>7,.0f} MB/s{of['restore'] / of['source']:>8.0%}" if "source" in of else ""
        print(f"{name:<36}{of['restore']:>7,.0f} MB/s{source}", flush=True)
    sys.stdout.write(json.dumps({"trainer_restore": found}) + "\n")


if __name__ == "__main__":
    main()
