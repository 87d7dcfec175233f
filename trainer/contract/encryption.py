"""Encryption of one stored object with Tink's streaming AEAD (AES256_GCM_HKDF_1MB).

The object's key in the store is the associated data, so a part that is moved, renamed or swapped does not open.
Parts are bounded (`manifest.PART_PLAINTEXT_BYTES`), so a part is opened whole: nothing of a damaged or
truncated part is ever handed out.

A manifest is authenticated by the same key: its tag is an encryption of nothing with the manifest as associated data,
so neither its paths nor their order, number, sizes or digests can be changed without the key. A tag does not show that
there is a newer manifest: its readers compare it with what they asked for (`check_manifest`).
"""

import base64
import hashlib
import io
from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

import tink
from tink import secret_key_access, streaming_aead

from trainer.contract.manifest import Manifest, StoredPart

streaming_aead.register()

AnyManifest = TypeVar("AnyManifest", bound=Manifest)
CHUNK_BYTES = 2**20
MANIFEST_PURPOSE = b"athanor manifest\n"  # no key of an object begins like this


class DecryptionError(ValueError):
    """A stored object is damaged, truncated, not where it belongs, or encrypted with another key."""


class Encryptor:
    """Encrypt and decrypt parts with one data key. Safe to share between threads."""

    def __init__(self, keyset: str) -> None:
        """`keyset`: base64 of Tink's JSON form, as the platform hands it out."""
        handle = tink.json_proto_keyset_format.parse(base64.b64decode(keyset).decode(), secret_key_access.TOKEN)
        self._primitive = handle.primitive(streaming_aead.StreamingAead)

    def encrypt(self, plaintext: bytes | memoryview, key: str) -> tuple[bytes, StoredPart]:
        """Encrypt one part. Return the ciphertext and its record. `key`: its object's key, the associated data."""
        return self.encrypt_pieces([memoryview(plaintext)], key)

    def encrypt_pieces(self, pieces: Iterable[memoryview], key: str) -> tuple[bytes, StoredPart]:
        """Encrypt one part, given as pieces (bytes, one dimension) that need not be joined; as `encrypt`.

        Takes CHUNK_BYTES at a time, so that other threads of the process can run in between.
        """
        sink, size = _Uncloseable(), 0
        with self._primitive.new_encrypting_stream(sink, key.encode()) as stream:
            for piece in pieces:
                size += len(piece)
                for start in range(0, len(piece), CHUNK_BYTES):
                    stream.write(bytes(piece[start : start + CHUNK_BYTES]))
        ciphertext = sink.getvalue()
        digest = hashlib.sha256(ciphertext).hexdigest()
        return ciphertext, StoredPart(key=key, size=len(ciphertext), sha256=digest, plaintext_size=size)

    def decrypt(self, ciphertext: bytes, part: StoredPart) -> bytes:
        """Decrypt and return the plaintext of a part that a manifest names. Raises DecryptionError on any
        difference."""
        if len(ciphertext) != part.size:
            raise DecryptionError(f"{part.key}: {len(ciphertext)} bytes where the manifest says {part.size}")
        if hashlib.sha256(ciphertext).hexdigest() != part.sha256:
            raise DecryptionError(f"{part.key}: digest differs from the manifest's")
        plaintext = self.decrypt_unlisted(ciphertext, part.key)
        if len(plaintext) != part.plaintext_size:
            raise DecryptionError(f"{part.key}: plaintext size differs from the manifest's")
        return plaintext

    def decrypt_unlisted(self, ciphertext: bytes, key: str) -> bytes:
        """Decrypt and return an object that no manifest names (a manifest itself, an end marker).

        Takes CHUNK_BYTES at a time: Tink takes longer to read all in one call.
        """
        try:
            with self._primitive.new_decrypting_stream(io.BytesIO(ciphertext), key.encode()) as stream:
                return b"".join(iter(partial(stream.read, CHUNK_BYTES), b""))
        except tink.TinkError as error:
            raise DecryptionError(f"{key}: cannot be decrypted with this key ({error})") from error

    def tag(self, content: bytes) -> str:
        """Return a code over `content`, as text, that only a holder of the data key can make."""
        sink = _Uncloseable()
        with self._primitive.new_encrypting_stream(sink, MANIFEST_PURPOSE + content):
            pass
        return base64.b64encode(sink.getvalue()).decode()

    def is_tag(self, content: bytes, tag: str) -> bool:
        """Return whether a tag authenticates this content under the key."""
        try:
            source = io.BytesIO(base64.b64decode(tag, validate=True))
            with self._primitive.new_decrypting_stream(source, MANIFEST_PURPOSE + content) as stream:
                return bool(stream.read() == b"")
        except (tink.TinkError, ValueError):
            return False


def authenticate(manifest: AnyManifest, encryptor: Encryptor) -> AnyManifest:
    """Return the manifest with its tag."""
    return manifest.model_copy(update={"tag": encryptor.tag(manifest.authenticated_bytes())})


def check_manifest(manifest: Manifest, encryptor: Encryptor, **expected: Any) -> None:
    """Raise DecryptionError unless the tag is right and the fields named in `expected` have these values."""
    if not manifest.tag:
        raise DecryptionError(f"the {manifest.kind}'s manifest has no authentication tag")
    if not encryptor.is_tag(manifest.authenticated_bytes(), manifest.tag):
        raise DecryptionError(f"the {manifest.kind}'s manifest was changed, or is another job's")
    for name, value in expected.items():
        found = getattr(manifest, name)
        if found != value:
            raise DecryptionError(f"the {manifest.kind}'s manifest is of another {name}: {found!r}, not {value!r}")


def new_keyset() -> str:
    """Return a new data key, as base64 of Tink's JSON form."""
    handle = tink.new_keyset_handle(streaming_aead.streaming_aead_key_templates.AES256_GCM_HKDF_1MB)
    text = tink.json_proto_keyset_format.serialize(handle, secret_key_access.TOKEN)
    return base64.b64encode(text.encode()).decode()


class _Uncloseable(io.BytesIO):
    """Tink closes its destination; the bytes are wanted afterwards."""

    def close(self) -> None:
        pass
