"""Certificates of erasure: documents that are authenticated as exports of the audit trail are.

A certificate has a code over its content under the chain's key of the audit trail, and that key wrapped by the master
key: `verify` needs the document and the master key, and no database.
"""

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from typing import Any

from athanor.accounts import audit, audit_chain
from athanor.core import encryption
from athanor.core.errors import Misconfigured

KIND = "athanor certificate of erasure"
VERSION = 1


def make(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the certificate of a content. Call after the audit record, in its transaction."""
    known = audit.chain_key()
    assert known is not None, "a record of the trail was just written"
    key, wrapped_key = known
    document = {"kind": KIND, "version": VERSION, **content, "key": wrapped_key.hex()}
    return {**document, "mac": audit_chain.mac(key, "erasure", document)}


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the digest by which the audit trail names a content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def verify(document: Any) -> Iterator[str]:
    """Yield what is wrong with a certificate, as sentences. Needs the master key only."""
    if not isinstance(document, dict) or document.get("kind") != KIND or "key" not in document:
        yield f"it is not a document of the kind {KIND!r}"
        return
    try:
        key = encryption.unwrap_by_master(bytes.fromhex(document["key"]), audit_chain.KEY_OWNER).encode()
    except (Misconfigured, ValueError, TypeError):
        yield "its key does not open with this master key"
        return
    content = {name: value for name, value in document.items() if name != "mac"}
    if not hmac.compare_digest(str(document.get("mac")), audit_chain.mac(key, "erasure", content)):
        yield "it was changed, or was not written by this platform"
