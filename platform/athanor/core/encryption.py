"""Key wrapping: a data key is wrapped by its team's key, that by the master key. All of it is Tink.

The master key comes from the environment (config/env.py). What a wrapped key belongs to is its associated data,
so a wrapped key that is moved to another row does not open. What Tink encrypts begins with the id of the key it used,
so that the rows show what a rotation has still to do, and an interrupted one can continue.
"""

import base64
import json
import secrets
from functools import lru_cache
from typing import Any

import tink
from django.conf import settings
from tink import aead, secret_key_access

from athanor.core.errors import Misconfigured

aead.register()

TINK_PREFIX = b"\x01"
PREFIX_BYTES = 5
Stored = bytes | memoryview  # as a BinaryField is read


def new_wrapping_keyset() -> str:
    """Return a new AEAD key for wrapping others, as base64 of Tink's JSON form."""
    return _to_text(tink.new_keyset_handle(aead.aead_key_templates.AES256_GCM))


def new_secret() -> str:
    """Return 256 random bits as URL-safe text, for secrets that are not keysets, such as an HMAC key."""
    return secrets.token_urlsafe(32)


def wrap(wrapping_keyset: str, secret: str, owner: str) -> bytes:
    """Encrypt a secret with a wrapping keyset; `owner` is the associated data."""
    wrapped: bytes = _primitive(wrapping_keyset).encrypt(secret.encode(), owner.encode())
    return wrapped


def unwrap(wrapping_keyset: str, wrapped: Stored, owner: str) -> str:
    """Decrypt a wrapped secret of `owner`. Raise Misconfigured if the keyset cannot decrypt it."""
    try:
        secret: bytes = _primitive(wrapping_keyset).decrypt(bytes(wrapped), owner.encode())
    except tink.TinkError as error:
        raise Misconfigured(
            "key_unreadable",
            f"the key of {owner} does not open with the key above it",
            remedy="start the platform with the master key (ATHANOR_MASTER_KEY) it was made with; while that is being "
            "replaced, with the old one in ATHANOR_PREVIOUS_MASTER_KEY too",
        ) from error
    return secret.decode()


def wrap_by_master(secret: str, owner: str) -> bytes:
    """Encrypt a secret with the master key."""
    return wrap(master_keyset(), secret, owner)


def unwrap_by_master(wrapped: Stored, owner: str) -> str:
    """Decrypt by the master key, or by the previous one during a rotation."""
    keyset, previous = master_keyset(), previous_master_keyset()
    if previous and not is_wrapped_by(keyset, wrapped):
        keyset = previous
    return unwrap(keyset, wrapped, owner)


def is_wrapped_by(wrapping_keyset: str, wrapped: Stored) -> bool:
    """Return whether the keyset's primary key wrapped this value."""
    primary = int(_parsed(wrapping_keyset)["primaryKeyId"])
    return bytes(wrapped)[:PREFIX_BYTES] == TINK_PREFIX + primary.to_bytes(4, "big")


def with_new_primary(keyset: str) -> str:
    """Return the keyset with a new primary key; values wrapped by the old keys still open."""
    old, new = _parsed(keyset), _parsed(new_wrapping_keyset())
    if new["primaryKeyId"] in {key["keyId"] for key in old["key"]}:
        return with_new_primary(keyset)  # one chance in four thousand million
    return _encoded({"primaryKeyId": new["primaryKeyId"], "key": [*old["key"], *new["key"]]})


def only_primary(keyset: str) -> str:
    """Return the keyset without its older keys."""
    parsed = _parsed(keyset)
    kept = [key for key in parsed["key"] if key["keyId"] == parsed["primaryKeyId"]]
    return _encoded({"primaryKeyId": parsed["primaryKeyId"], "key": kept})


def is_single(keyset: str) -> bool:
    """Return whether the keyset has exactly one key."""
    return len(_parsed(keyset)["key"]) == 1


def master_keyset() -> str:
    """Return ATHANOR_MASTER_KEY."""
    keyset: str = settings.ATHANOR.master_key
    return keyset


def previous_master_keyset() -> str:
    """Return ATHANOR_PREVIOUS_MASTER_KEY; empty unless the master key is being rotated."""
    keyset: str = settings.ATHANOR.previous_master_key
    return keyset


def _to_text(handle: tink.KeysetHandle) -> str:
    text = tink.json_proto_keyset_format.serialize(handle, secret_key_access.TOKEN)
    return base64.b64encode(text.encode()).decode()


def _parsed(keyset: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(base64.b64decode(keyset))
    return parsed


def _encoded(parsed: dict[str, Any]) -> str:
    return base64.b64encode(json.dumps(parsed).encode()).decode()


@lru_cache(maxsize=256)
def _primitive(keyset: str) -> aead.Aead:
    text = base64.b64decode(keyset).decode()
    handle = tink.json_proto_keyset_format.parse(text, secret_key_access.TOKEN)
    return handle.primitive(aead.Aead)
