"""Versions of the programs that all nodes of a run must share, compared before the ranks join."""

import hashlib
import json
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch.distributed import Store

from trainer.contract.run import EndClass
from trainer.contract.timeouts import STARTUP_TIMEOUT
from trainer.errors import TrainerError
from trainer.resilience.preflight import find_skew

SOURCE = Path(__file__).resolve().parents[1]
DRIVER = Path("/proc/driver/nvidia/version")
_DRIVER_BRANCH = re.compile(r"\b(\d{3,})\.\d+")


def versions_here() -> dict[str, str]:
    """Return the versions of this node's programs, by name. A patch of Python and a release of a driver's branch may
    differ between nodes: clusters are upgraded node by node."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2]), "torch": torch.__version__}
    found["source of the trainer"] = source_digest()
    try:
        found["trainer"] = version("athanor")
    except PackageNotFoundError:  # a checkout that is not installed
        found["trainer"] = "unknown"
    if torch.cuda.is_available():
        found["CUDA"] = str(torch.version.cuda or torch.version.hip)
        found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        branch = _DRIVER_BRANCH.search(DRIVER.read_text()) if DRIVER.exists() else None
        if branch is not None:
            found["driver branch"] = branch[1]
    return found


def source_digest(package: Path = SOURCE) -> str:
    """Return the SHA-256 that identifies the Python source of the trainer, or of another `package`, as hexadecimal.

    It is that of the list that `sha256sum` prints, so that it can be computed from a release without Athanor:
    `cd trainer && find . -name '*.py' | LC_ALL=C sort | xargs sha256sum | sha256sum`.
    """
    paths = sorted(f"./{path.relative_to(package).as_posix()}".encode() for path in package.rglob("*.py"))
    whole = hashlib.sha256()
    for path in paths:
        digest = hashlib.sha256((package / path.decode()).read_bytes()).hexdigest()
        whole.update(digest.encode() + b"  " + path + b"\n")
    return whole.hexdigest()


def compare_versions(
    store: Store, node: str, node_rank: int, num_nodes: int, versions: dict[str, str] | None
) -> list[str]:
    """Return the names of all nodes by their ranks. Raise TrainerError on the nodes whose versions differ from those of
    most nodes (NODE_UNFIT), or on all if no version is that of most (VERSIONS_DIFFER): then none is at fault.

    Called by each rank; `versions`: of this node, on its first rank, else None. `store` must be new to this group.
    """
    if versions is not None:
        store.set(f"{node_rank}", json.dumps([node, versions]))
    if versions is not None and node_rank == 0:
        keys = [str(each) for each in range(num_nodes)]
        store.wait(keys, STARTUP_TIMEOUT)
        rows = [json.loads(store.get(key)) for key in keys]
        names = [name or f"node {at}" for at, (name, _) in enumerate(rows)]
        if len(set(names)) < len(names):  # such as several agents on one machine
            names = [f"{name} ({at})" for at, name in enumerate(names)]
        skew = find_skew({name: own for name, (_, own) in zip(names, rows, strict=True)})
        odd = [at for at, name in enumerate(names) if skew is not None and name in skew.odd]
        store.set("compared", json.dumps([names, odd, skew.because if skew is not None else ""]))
    store.wait(["compared"], STARTUP_TIMEOUT)
    names, odd, because = json.loads(store.get("compared"))
    if node_rank in odd:
        has_majority = len(odd) < num_nodes
        raise TrainerError(EndClass.NODE_UNFIT if has_majority else EndClass.VERSIONS_DIFFER, because)
    return list(names)
