"""Configuration of the local backend."""

import sys
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from athanor.backends.profile import AbsolutePath, ClusterProfile

AGENT = (sys.executable, "-m", "trainer.agent")


class LocalConfig(BaseModel):
    """`directory`: where attempts' folders are kept. `command`: what runs as the agent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: AbsolutePath
    command: Annotated[tuple[str, ...], Field(min_length=1)] = AGENT
    kill_after_seconds: Annotated[float, Field(gt=0, le=3600)] = 60.0
    profile: ClusterProfile = ClusterProfile()
