"""Whether a running stack still runs the code that lies in the repository."""

import hashlib

from deploy.local.environment import REPOSITORY

SOURCES = ("platform", "workers", "trainer", "deploy/local")


def current() -> str:
    """Return a digest of everything that the running programs have read at their start."""
    digest = hashlib.sha256()
    paths = [path for top in SOURCES for path in (REPOSITORY / top).rglob("*.py")]
    paths += [REPOSITORY / "constraints.txt", REPOSITORY / "manage.py"]
    for path in sorted(paths):
        digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
