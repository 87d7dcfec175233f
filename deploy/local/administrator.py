"""The platform administrator of a local stack, at its API."""

from collections.abc import Mapping
from typing import Any

import httpx

from deploy.local.errors import StackError


class Administrator:
    """Signed in as on the dashboard."""

    def __init__(self, credentials: Mapping[str, Any]) -> None:
        """`credentials`: url, username and password, as the stack keeps them."""
        self._http = httpx.Client(base_url=credentials["url"], timeout=60)
        self._csrf = self.call("GET", "session")["csrf_token"]
        given = {"username": credentials["username"], "password": credentials["password"]}
        self._csrf = self.call("POST", "session", given)["csrf_token"]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """`path` below /api/v1/. Raises StackError with the answer when it is refused."""
        headers = {} if method == "GET" else {"X-CSRFToken": self._csrf}
        answer = self._http.request(method, f"/api/v1/{path}", json=body, headers=headers)
        if not answer.is_success:
            raise StackError(f"{method} {path} was answered with {answer.status_code}: {answer.text}", log=answer.text)
        return answer.json() if answer.content else None
