"""Key wrapping: a data key is wrapped by its team's key, that by the master key. All of it is Tink.

The master key comes from the environment (config/env.py). What a wrapped key belongs to is its associated data,
so a wrapped key that is moved to another row does not open.
"""

import base64
from functools import lru_cache

import tink
from django.conf import settings
from tink import aead, secret_key_access

from athanor.core.errors import Misconfigured

aead.register()


def new_wrapping_keyset() -> str:
    """A fresh AEAD key for wrapping others, as base64 of Tink's JSON form."""
    return _to_text(tink.new_keyset_handle(aead.aead_key_templates.AES256_GCM))


def wrap(wrapping_keyset: str, secret: str, owner: str) -> bytes:
    wrapped: bytes = _primitive(wrapping_keyset).encrypt(secret.encode(), owner.encode())
    return wrapped


def unwrap(wrapping_keyset: str, wrapped: bytes, owner: str) -> str:
    try:
        secret: bytes = _primitive(wrapping_keyset).decrypt(bytes(wrapped), owner.encode())
    except tink.TinkError as error:
        raise Misconfigured(
            "key_unreadable",
            f"the key of {owner} does not open with the key above it",
            remedy="start the platform with the master key (ATHANOR_MASTER_KEY) it was made with",
        ) from error
    return secret.decode()


def master_keyset() -> str:
    keyset: str = settings.ATHANOR.master_key
    return keyset


def _to_text(handle: tink.KeysetHandle) -> str:
    text = tink.json_proto_keyset_format.serialize(handle, secret_key_access.TOKEN)
    return base64.b64encode(text.encode()).decode()


@lru_cache(maxsize=256)
def _primitive(keyset: str) -> aead.Aead:
    text = base64.b64decode(keyset).decode()
    handle = tink.json_proto_keyset_format.parse(text, secret_key_access.TOKEN)
    return handle.primitive(aead.Aead)
