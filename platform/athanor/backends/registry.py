"""Every kind of backend, by name. Classes load when first used, so that no kind's needs burden another."""

import importlib
from typing import cast

from pydantic import BaseModel

from athanor.backends.base import Backend

BACKENDS: dict[str, str] = {
    "slurm": "athanor.backends.slurm.backend:SlurmBackend",
    "local": "athanor.backends.local.backend:LocalBackend",
    "kubernetes": "athanor.backends.kubernetes.backend:KubernetesBackend",
    "fake": "athanor.backends.fake.backend:FakeBackend",
    "fake_cluster": "athanor.backends.fake.backend:FakeClusterBackend",
}


SCRIPTED = frozenset({"fake", "fake_cluster"})
KINDS = tuple(kind for kind in BACKENDS if kind not in SCRIPTED)  # what people are offered


def backend_class(kind: str) -> type[Backend]:
    """Raises ValueError for a kind that is not registered."""
    if kind not in BACKENDS:
        raise ValueError(f"backend kind {kind!r} is none of {', '.join(BACKENDS)}")
    module, _, name = BACKENDS[kind].partition(":")
    return cast("type[Backend]", getattr(importlib.import_module(module), name))


def load(kind: str, config: dict[str, object]) -> Backend:
    """The backend of a cluster. Raises ValueError for a kind that is not registered, and, which is one too, pydantic's
    ValidationError for a configuration that does not fit."""
    return backend_class(kind)(**config)


def configuration(kind: str) -> type[BaseModel]:
    """What a configuration of that kind may hold."""
    return backend_class(kind).configuration
