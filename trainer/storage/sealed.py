"""Files of any size as sealed parts of bounded size, and back."""

from collections.abc import Iterator
from pathlib import Path

from trainer.contract.manifest import PART_PLAINTEXT_BYTES, StoredFile, StoredPart
from trainer.contract.sealing import Sealer
from trainer.storage.base import Storage


def put_sealed(storage: Storage, sealer: Sealer, prefix: str, path: str, content: bytes | memoryview) -> StoredFile:
    """Seal and store `content` as `<prefix><path>-000.part`, `-001.part` ...; returns what a manifest names."""
    view = memoryview(content)
    parts = []
    for number, start in enumerate(range(0, len(view), PART_PLAINTEXT_BYTES)):
        key = f"{prefix}{path}-{number:03d}.part"
        ciphertext, part = sealer.seal(view[start : start + PART_PLAINTEXT_BYTES], key)
        storage.put(key, ciphertext)
        parts.append(part)
    return StoredFile(path=path, parts=parts)


def put_sealed_path(storage: Storage, sealer: Sealer, prefix: str, path: str, source: Path) -> StoredFile:
    """As `put_sealed`, from a file, one part in memory at a time."""
    parts: list[StoredPart] = []
    with source.open("rb") as file:
        while chunk := file.read(PART_PLAINTEXT_BYTES):
            key = f"{prefix}{path}-{len(parts):03d}.part"
            ciphertext, part = sealer.seal(chunk, key)
            storage.put(key, ciphertext)
            parts.append(part)
    return StoredFile(path=path, parts=parts)


def open_parts(storage: Storage, sealer: Sealer, file: StoredFile) -> Iterator[bytes]:
    """Plaintext part by part, each verified before it is yielded. Raises SealError, StorageError."""
    for part in file.parts:
        yield sealer.open(storage.get(part.key), part)


def get_sealed(storage: Storage, sealer: Sealer, file: StoredFile) -> bytes:
    return b"".join(open_parts(storage, sealer, file))


def get_sealed_path(storage: Storage, sealer: Sealer, file: StoredFile, target: Path) -> None:
    """Write to `target`, which appears only when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with partial.open("wb") as sink:
        for plaintext in open_parts(storage, sealer, file):
            sink.write(plaintext)
    partial.replace(target)
