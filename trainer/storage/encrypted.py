"""Files of any size as encrypted parts of bounded size, and back."""

from collections.abc import Iterator
from pathlib import Path

from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import PART_PLAINTEXT_BYTES, StoredFile, StoredPart
from trainer.storage.base import Storage


def put_encrypted(
    storage: Storage, encryptor: Encryptor, prefix: str, path: str, content: bytes | memoryview
) -> StoredFile:
    """Encrypt and store `content` as `<prefix><path>-000.part`, `-001.part` ...; returns what a manifest names."""
    view = memoryview(content)
    parts = []
    for number, start in enumerate(range(0, len(view), PART_PLAINTEXT_BYTES)):
        key = f"{prefix}{path}-{number:03d}.part"
        ciphertext, part = encryptor.encrypt(view[start : start + PART_PLAINTEXT_BYTES], key)
        storage.put(key, ciphertext)
        parts.append(part)
    return StoredFile(path=path, parts=parts)


def encrypt_file(storage: Storage, encryptor: Encryptor, prefix: str, path: str, source: Path) -> StoredFile:
    """As `put_encrypted`, from a file, one part in memory at a time."""
    parts: list[StoredPart] = []
    with source.open("rb") as file:
        while chunk := file.read(PART_PLAINTEXT_BYTES):
            key = f"{prefix}{path}-{len(parts):03d}.part"
            ciphertext, part = encryptor.encrypt(chunk, key)
            storage.put(key, ciphertext)
            parts.append(part)
    return StoredFile(path=path, parts=parts)


def decrypt_parts(storage: Storage, encryptor: Encryptor, file: StoredFile) -> Iterator[bytes]:
    """Yield the plaintext of each part, verified. Raises DecryptionError, StorageError."""
    for part in file.parts:
        yield encryptor.decrypt(storage.get(part.key), part)


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
