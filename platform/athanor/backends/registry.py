"""Every kind of backend, by name. Classes load when first used, so that no kind's needs burden another."""

import importlib
from typing import cast

from athanor.backends.base import Backend

BACKENDS: dict[str, str] = {
    "local": "athanor.backends.local.backend:LocalBackend",
    "fake": "athanor.backends.fake.backend:FakeBackend",
    "fake_cluster": "athanor.backends.fake.backend:FakeClusterBackend",
}


def load(kind: str, config: dict[str, object]) -> Backend:
    """The backend of a cluster. Raises ValueError for a kind that is not registered."""
    if kind not in BACKENDS:
        raise ValueError(f"backend kind {kind!r} is none of {', '.join(BACKENDS)}")
    module, _, name = BACKENDS[kind].partition(":")
    return cast(Backend, getattr(importlib.import_module(module), name)(**config))
