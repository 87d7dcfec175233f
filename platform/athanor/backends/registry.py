"""The kinds of backends, by name. Classes are imported on first use, so that no kind needs the packages of another."""

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
    """Return the class of a kind. Raise ValueError for a kind that is not registered."""
    if kind not in BACKENDS:
        raise ValueError(f"backend kind {kind!r} is none of {', '.join(BACKENDS)}")
    module, _, name = BACKENDS[kind].partition(":")
    return cast("type[Backend]", getattr(importlib.import_module(module), name))


def load(kind: str, config: dict[str, object]) -> Backend:
    """Return the backend of a cluster.

    Raise ValueError for a kind that is not registered, and pydantic's ValidationError, which is one too, for an invalid
    configuration.
    """
    return backend_class(kind)(**config)


def configuration(kind: str) -> type[BaseModel]:
    """Return the configuration model of a kind."""
    return backend_class(kind).configuration
