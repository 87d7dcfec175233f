"""Files of any size as encrypted parts of bounded size, and back."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Protocol

from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import PART_PLAINTEXT_BYTES, PARTS_IN_FLIGHT, StoredFile, StoredPart
from trainer.storage.base import Storage

PARTS_ANNOUNCED = 64


class PartEncryptor(Protocol):
    """What encrypts parts: `Encryptor`, or processes for it. Thread-safe."""

    def encrypt_pieces(self, pieces: Iterable[memoryview], key: str) -> tuple[bytes, StoredPart]:
        """Encrypt one part, given as pieces (bytes, one dimension). Return the ciphertext and its record. `key`: its
        object's key."""


def put_encrypted(
    storage: Storage, encryptor: Encryptor, prefix: str, path: str, content: bytes | memoryview
) -> StoredFile:
    """Encrypt and store `content` as `<prefix><path>-000.part`, `-001.part` ...; returns what a manifest names."""
    return put_pieces(storage, encryptor, prefix, path, [memoryview(content)], len(content))


def put_pieces(
    storage: Storage,
    encryptor: PartEncryptor,
    prefix: str,
    path: str,
    pieces: Iterable[memoryview],
    size: int,
    in_flight: int = PARTS_IN_FLIGHT,
) -> StoredFile:
    """As `put_encrypted`, of content of `size` bytes in pieces (bytes, one dimension), which are not joined.

    Stores `in_flight` parts at a time. After a failure no further part begins.
    """
    keys = [f"{prefix}{path}-{number:03d}.part" for number in range(-(-size // PART_PLAINTEXT_BYTES))]

    def store(number: int, part: list[memoryview]) -> StoredPart:
        ciphertext, record = encryptor.encrypt_pieces(part, keys[number])
        storage.put(keys[number], ciphertext)
        return record

    records: list[StoredPart] = []
    pending: deque[Future[StoredPart]] = deque()
    with ThreadPoolExecutor(in_flight, thread_name_prefix="store") as pool:
        for number, part in enumerate(_parts(pieces)):
            if number % PARTS_ANNOUNCED == 0 and len(keys) > 1:
                while pending:
                    records.append(pending.popleft().result())
                storage.announce(keys[number : number + PARTS_ANNOUNCED])
            if len(pending) == in_flight:
                records.append(pending.popleft().result())
            pending.append(pool.submit(store, number, part))
        records.extend(each.result() for each in pending)
    return StoredFile(path=path, parts=records)


def _parts(pieces: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Yield the pieces cut into parts of PART_PLAINTEXT_BYTES, the last one shorter."""
    part: list[memoryview] = []
    room = PART_PLAINTEXT_BYTES
    for piece in pieces:
        rest = piece
        while len(rest) >= room:
            yield [*part, rest[:room]]
            part, rest, room = [], rest[room:], PART_PLAINTEXT_BYTES
        if len(rest):
            part.append(rest)
            room -= len(rest)
    if part:
        yield part


def encrypt_file(storage: Storage, encryptor: Encryptor, prefix: str, path: str, source: Path) -> StoredFile:
    """As `put_encrypted`, from a file, a few parts in memory at a time."""
    with source.open("rb") as file:
        chunks = iter(lambda: file.read(PART_PLAINTEXT_BYTES), b"")
        return put_pieces(storage, encryptor, prefix, path, map(memoryview, chunks), source.stat().st_size)


def decrypt_parts(storage: Storage, encryptor: Encryptor, file: StoredFile) -> Iterator[bytes]:
    """Yield the plaintext of each part, verified. Raises DecryptionError, StorageError."""
    for part in file.parts:
        yield encryptor.decrypt(storage.get(part.key), part)


def read_ranges(
    storage: Storage, encryptor: Encryptor, file: StoredFile, ranges: Sequence[tuple[int, int]], in_flight: int = 1
) -> Iterator[bytearray]:
    """Yield the plaintext of each range (first byte, the one after the last); ranges are in order and do not overlap.

    Fetches only the parts that have some of it, each once, `in_flight` of them ahead. Raises DecryptionError,
    StorageError; ValueError for a range beyond the end of the file.
    """
    starts = [0]
    for part in file.parts:
        starts.append(starts[-1] + part.plaintext_size)
    if ranges and ranges[-1][1] > starts[-1]:
        raise ValueError(f"{file.path} has {starts[-1]} bytes, not {ranges[-1][1]}")

    def parts_of(begin: int, end: int) -> range:
        return range(bisect_right(starts, begin) - 1, bisect_left(starts, end)) if begin < end else range(0)

    def fetch(number: int) -> bytes:
        return encryptor.decrypt(storage.get(file.parts[number].key), file.parts[number])

    waiting = iter(sorted({number for each in ranges for number in parts_of(*each)}))
    current, plaintext = -1, b""
    with ThreadPoolExecutor(in_flight, thread_name_prefix="fetch") as pool:
        fetching = deque(pool.submit(fetch, number) for number in islice(waiting, in_flight))
        for begin, end in ranges:
            content = bytearray()
            for number in parts_of(begin, end):
                if number != current:
                    current, plaintext = number, fetching.popleft().result()
                    fetching.extend(pool.submit(fetch, later) for later in islice(waiting, 1))
                content += memoryview(plaintext)[max(0, begin - starts[number]) : end - starts[number]]
            yield content


def get_decrypted(storage: Storage, encryptor: Encryptor, file: StoredFile) -> bytes:
    """Return the decrypted content of a file."""
    return b"".join(decrypt_parts(storage, encryptor, file))


def decrypt_to_file(storage: Storage, encryptor: Encryptor, file: StoredFile, target: Path) -> None:
    """Decrypt a file to `target`, which appears only when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with partial.open("wb") as sink:
        for plaintext in decrypt_parts(storage, encryptor, file):
            sink.write(plaintext)
    partial.replace(target)
