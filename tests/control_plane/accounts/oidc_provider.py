"""A small OpenID Connect provider on loopback: one user, whose claims the test sets; codes are good once, with PKCE."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from django.test import Client

CLIENT_ID, CLIENT_SECRET = "athanor", "oidc-secret"


class Provider:
    def __init__(self) -> None:
        self.claims: dict[str, Any] = {"sub": "u-1", "preferred_username": "grace", "email": "grace@example.org"}
        self.refuse_tokens = False
        self.unavailable = False
        self.userinfo_unavailable = False
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._codes: dict[str, dict[str, str]] = {}
        self._access: dict[str, dict[str, Any]] = {}
        self.refresh_tokens: set[str] = set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"

    def authorize(self, address: str) -> str:
        """Sign in at the provider as the user's browser. Return the URL that it redirects to."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["client_id"] == CLIENT_ID
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe()
        self._codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if self.unavailable:
            return 503, {"error": "temporarily_unavailable"}
        if form.get("grant_type") == "refresh_token":
            return self._refresh(form)
        asked = self._codes.pop(form.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        known = form.get("client_id") == CLIENT_ID and form.get("client_secret") == CLIENT_SECRET
        if self.refuse_tokens or not asked or not known or challenge.decode().rstrip("=") != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        return 200, self._tokens(with_refresh="offline_access" in asked.get("scope", "").split())

    def _refresh(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Exchange a refresh token, which works once, for a new one."""
        known = form.get("client_id") == CLIENT_ID and form.get("client_secret") == CLIENT_SECRET
        if self.refuse_tokens or not known or form.get("refresh_token") not in self.refresh_tokens:
            return 400, {"error": "invalid_grant", "error_description": "Token is not active"}
        self.refresh_tokens.remove(form["refresh_token"])
        return 200, self._tokens(with_refresh=True)

    def _tokens(self, *, with_refresh: bool) -> dict[str, Any]:
        access = secrets.token_urlsafe()
        self._access[access] = dict(self.claims)
        now = int(time.time())
        claims = {**self.claims, "iss": self.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + 300}
        signed = jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": "k"})
        answer = {"access_token": access, "token_type": "Bearer", "expires_in": 300, "id_token": signed}
        if with_refresh:
            answer["refresh_token"] = secrets.token_urlsafe()
            self.refresh_tokens.add(answer["refresh_token"])
        return answer

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        if path == "/.well-known/openid-configuration":
            places = {name: f"{self.issuer}/{name}" for name in ("authorize", "token", "userinfo", "jwks")}
            return 200, {
                "issuer": self.issuer,
                "authorization_endpoint": places["authorize"],
                "token_endpoint": places["token"],
                "userinfo_endpoint": places["userinfo"],
                "jwks_uri": places["jwks"],
                "token_endpoint_auth_methods_supported": ["client_secret_post"],
            }
        if path == "/jwks":
            public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
            return 200, {"keys": [{**public, "kid": "k", "use": "sig", "alg": "RS256"}]}
        if path == "/token" and method == "POST":
            return self.token({name: values[0] for name, values in parse_qs(body.decode()).items()})
        if path == "/userinfo" and self.userinfo_unavailable:
            return 503, {}
        if path == "/userinfo":
            claims = self._access.get(headers.get("Authorization", "").removeprefix("Bearer "))
            return (200, claims) if claims else (401, {"error": "invalid_token"})
        return 404, {}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, answer = provider.answer(self.command, self.path.partition("?")[0], self.headers, body)
                raw = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = _serve

            def log_message(self, *_: Any) -> None:
                return

        return Handler


@contextmanager
def running() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.server.shutdown()
        provider.server.server_close()
        thread.join()


def sign_in(provider: Provider, client: Client | None = None) -> tuple[Client, Any]:
    """Go to the provider and return with a code, as a browser."""
    client = client or Client()
    away = client.post("/sso/oidc/login", {"next": "/jobs"})
    assert away.status_code == 302, away.content
    assert away["Location"].startswith(f"{provider.issuer}/authorize?")
    return client, client.get(provider.authorize(away["Location"]))
