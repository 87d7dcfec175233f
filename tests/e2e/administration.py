"""What a platform administrator does in tests: registers clusters."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deploy.local.administrator import Administrator


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
