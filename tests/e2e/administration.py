"""What a platform administrator does in tests: registers clusters."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx


class Administrator:
    """Signed in as in the dashboard."""

    def __init__(self, credentials: Any) -> None:
        """`credentials`: url, username and password, as the stack keeps them."""
        self._http = httpx.Client(base_url=f"{credentials['url']}/api/v1/", timeout=60)
        self._csrf = self.call("GET", "session")["csrf_token"]
        given = {"username": credentials["username"], "password": credentials["password"]}
        self._csrf = self.call("POST", "session", given)["csrf_token"]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"X-CSRFToken": self._csrf} if method != "GET" else {}
        answer = self._http.request(method, path, json=body, headers=headers)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None


@contextmanager
def registered(admin: Administrator, name: str, kind: str, config: dict[str, Any]) -> Iterator[str]:
    """A cluster of four nodes with two slots each, disabled when its test is over."""
    known = [each for each in admin.call("GET", "clusters")["items"] if each["name"] == name]
    if known:
        cluster_id = known[0]["id"]
        admin.call("PATCH", f"clusters/{cluster_id}", {"config": config, "enabled": True})
    else:
        cluster_id = admin.call("POST", "clusters", {"name": name, "kind": kind, "config": config})["id"]
    pool = {"accelerator": "cpu", "nodes": 4, "slots_per_node": 2, "memory_bytes": 4 * 2**30}
    admin.call("PUT", f"clusters/{cluster_id}/pools/cpu", pool)
    yield cluster_id
    admin.call("PATCH", f"clusters/{cluster_id}", {"enabled": False})
