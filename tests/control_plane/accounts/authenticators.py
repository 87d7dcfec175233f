"""An authenticator app and a security key in software."""

import base64
import hashlib
import hmac
import json
import os
import struct
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from fido2.cose import ES256
from fido2.webauthn import AttestationObject, AttestedCredentialData, AuthenticatorData


def totp(secret: str, at: float) -> str:
    """RFC 6238 with its defaults: HMAC-SHA1, steps of 30 seconds, six digits."""
    digest = hmac.new(base64.b32decode(secret), struct.pack(">Q", int(at) // 30), hashlib.sha1).digest()
    start = digest[-1] & 0x0F
    return f"{(struct.unpack('>I', digest[start : start + 4])[0] & 0x7FFFFFFF) % 10**6:06}"


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class SecurityKey:
    """Responds to WebAuthn challenges for one page, as a browser with a security key."""

    def __init__(self, origin: str, rp_id: str) -> None:
        self.origin = origin
        self.rp_hash = hashlib.sha256(rp_id.encode()).digest()
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.id = os.urandom(32)
        self.count = 0

    def register(self, options: dict[str, Any]) -> dict[str, Any]:
        public = ES256.from_cryptography_key(self.private.public_key())
        flags = AuthenticatorData.FLAG.UP | AuthenticatorData.FLAG.AT
        attested = AttestedCredentialData.create(b"\0" * 16, self.id, public)
        data = AuthenticatorData.create(self.rp_hash, flags, self.count, attested)
        return self._credential(
            {
                "clientDataJSON": encode(self._client_data("webauthn.create", options)),
                "attestationObject": encode(AttestationObject.create("none", data, {})),
            }
        )

    def sign(self, options: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        data = AuthenticatorData.create(self.rp_hash, AuthenticatorData.FLAG.UP, self.count)
        client_data = self._client_data("webauthn.get", options)
        signature = self.private.sign(data + hashlib.sha256(client_data).digest(), ec.ECDSA(SHA256()))
        return self._credential(
            {
                "clientDataJSON": encode(client_data),
                "authenticatorData": encode(data),
                "signature": encode(signature),
            }
        )

    def _client_data(self, kind: str, options: dict[str, Any]) -> bytes:
        facts = {"type": kind, "challenge": options["publicKey"]["challenge"], "origin": self.origin}
        return json.dumps(facts).encode()

    def _credential(self, response: dict[str, str]) -> dict[str, Any]:
        name = encode(self.id)
        return {"id": name, "rawId": name, "type": "public-key", "response": response, "clientExtensionResults": {}}
