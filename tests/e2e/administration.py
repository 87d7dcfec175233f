"""What a platform administrator does in tests: registers clusters."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.local.administrator import Administrator


def write_server_part(data_dir: Path, name: str, kind: str, config: dict[str, Any]) -> None:
    """Write a configuration as the operator of the server would; it may hold commands, paths and addresses."""
    path = data_dir / "clusters" / f"{name}.cluster.json"
    path.write_text(json.dumps({"kind": kind, "config": config}))


@contextmanager
def registered(admin: Administrator, data_dir: Path, name: str, kind: str, config: dict[str, Any]) -> Iterator[str]:
    """A cluster of four nodes with two slots each, disabled when its test is over."""
    write_server_part(data_dir, name, kind, config)
    known = [each for each in admin.call("GET", "clusters")["items"] if each["name"] == name]
    if known:
        cluster_id = known[0]["id"]
        admin.call("PATCH", f"clusters/{cluster_id}", {"enabled": True})
    else:
        cluster_id = admin.call("POST", "clusters", {"name": name, "kind": kind, "config": {}})["id"]
    pool = {"accelerator": "cpu", "nodes": 4, "slots_per_node": 2, "memory_bytes": 4 * 2**30}
    admin.call("PUT", f"clusters/{cluster_id}/pools/cpu", pool)
    yield cluster_id
    admin.call("PATCH", f"clusters/{cluster_id}", {"enabled": False})
