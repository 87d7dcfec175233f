"""Configuration of a scripted backend."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from athanor.backends.profile import ClusterProfile


class FakeConfig(BaseModel):
    """All backends with the same `world` name share it; with an `address` (host:port), the world is what answers
    there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    world: Annotated[str, Field(min_length=1)] = "default"
    address: Annotated[str, Field(pattern=r"^$|^[A-Za-z0-9.-]+:[0-9]{1,5}$")] = ""
    timeout_seconds: Annotated[float, Field(gt=0, le=15)] = 5.0
    profile: ClusterProfile = ClusterProfile()
