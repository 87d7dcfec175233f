"""Documents of simulations."""

from datetime import datetime
from typing import Literal

from athanor.scheduling.simulations import SimulationRequest, SimulationResult
from trainer.contract.base import SpecModel


class SimulationSummary(SpecModel):
    """A simulation as lists contain it."""

    id: str
    """Identifier. It never changes and is never reused."""
    name: str
    """Name from the request. May be empty."""
    state: Literal["waiting", "running", "done", "failed"]
    """`waiting` for a worker, `running`, `done` with a result, or `failed` with an error."""
    created_by: str
    """Username of the person or service account that requested it."""
    created_at: datetime
    """Time of creation, ISO 8601 in UTC."""
    started_at: datetime | None
    """Time at which a worker started it, ISO 8601 in UTC. Null before."""
    ended_at: datetime | None
    """Time at which it was done or failed, ISO 8601 in UTC. Null before."""
    error: str
    """Why it failed. Empty otherwise."""


class SimulationDocument(SimulationSummary):
    """A simulation with its request and result."""

    request: SimulationRequest
    """What was requested."""
    result: SimulationResult | None
    """The outcome. Null until the simulation is done."""


class SimulationPage(SpecModel):
    """One page of the list of simulations."""

    items: list[SimulationSummary]
    """Objects of this page."""
    next_cursor: str | None
    """Send it as `cursor` for the next page. Null on the last page."""
