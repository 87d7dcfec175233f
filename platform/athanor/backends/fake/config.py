"""Configuration of a scripted backend."""

from typing import Annotated

from pydantic import Field

from athanor.backends.profile import ClusterProfile, Part


class FakeConfig(Part):
    """All backends with the same `world` name share it; with an `address` (host:port), the world is what answers
    there."""

    world: Annotated[str, Field(min_length=1)] = "default"
    address: Annotated[str, Field(pattern=r"^$|^[A-Za-z0-9.-]+:[0-9]{1,5}$")] = ""
    timeout_seconds: Annotated[float, Field(gt=0, le=15)] = 5.0
    profile: ClusterProfile = ClusterProfile()
