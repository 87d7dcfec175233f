"""Configuration of the local backend."""

import sys
from typing import Annotated

from pydantic import Field

from athanor.backends.profile import AbsolutePath, ClusterProfile, Part
from trainer.contract.units import DURATION

AGENT = (sys.executable, "-m", "trainer.agent")


class LocalConfig(Part):
    """Jobs run as processes on the host of the platform's workers."""

    directory: AbsolutePath
    """Directory in which the folders of attempts are."""
    command: Annotated[tuple[str, ...], Field(min_length=1)] = AGENT
    """Command that runs as the agent."""
    kill_after_seconds: Annotated[float, Field(gt=0, le=3600), DURATION] = 60.0
    """Time between SIGTERM and SIGKILL when an attempt is cancelled."""
    profile: ClusterProfile = ClusterProfile()
    """The network between the nodes, and where they store data."""
