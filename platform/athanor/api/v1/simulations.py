"""/simulations: what quotas and settings would do to real or made-up jobs. For platform administrators and auditors."""

from datetime import datetime
from typing import Any, Literal

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check_platform, principal
from athanor.api.idempotency import IDEMPOTENT, once
from athanor.api.pagination import PAGED, page
from athanor.api.parsers import JSONParser, TextYamlParser, YamlParser
from athanor.api.v1.shapes import PROBLEMS
from athanor.core.errors import NotFound
from athanor.scheduling import simulations
from athanor.scheduling.models import Simulation
from athanor.scheduling.simulations import SimulationRequest, SimulationResult
from athanor.specs.validation import parsed
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


class SimulationsView(APIView):
    parser_classes = (JSONParser, YamlParser, TextYamlParser)

    @extend_schema(operation_id="simulations_list", parameters=PAGED, responses={200: SimulationPage, **PROBLEMS})
    def get(self, request: Request) -> Response:
        """List simulations.

        Returns simulations, newest first, without their results. For platform administrators and auditors."""
        overseer(request)
        rows, next_cursor = page(request, Simulation.objects.select_related("created_by").defer("result"))
        items = [SimulationSummary(**summary(row)) for row in rows]
        return Response(SimulationPage(items=items, next_cursor=next_cursor).model_dump(mode="json"))

    @extend_schema(
        operation_id="simulations_create",
        parameters=IDEMPOTENT,
        request={"application/json": SimulationRequest, "application/yaml": SimulationRequest},
        responses={202: SimulationDocument, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Start a simulation.

        Replays jobs against the present quota tree and, if anything is proposed, against the proposed one. A
        background worker runs it: read it by its id until its state is `done` or `failed`. For platform
        administrators and auditors."""
        who = overseer(request)
        asked = parsed(SimulationRequest, request.data, "invalid_simulation", "simulation")
        return once(request, lambda: Response(shown(simulations.ask(asked, who.user)), status=202))


class SimulationView(APIView):
    @extend_schema(operation_id="simulations_show", responses={200: SimulationDocument, **PROBLEMS})
    def get(self, request: Request, simulation_id: str) -> Response:
        """Show a simulation.

        Returns the simulation with its request and, once it is done, its result. For platform administrators and
        auditors."""
        overseer(request)
        row = Simulation.objects.select_related("created_by").filter(pk=simulation_id).first()
        if row is None:
            raise NotFound("simulation", simulation_id)
        return Response(shown(row))


def overseer(request: Request) -> Principal:
    who = principal(request)
    check_platform(who, Permission.OVERSEE)
    return who


def summary(row: Simulation) -> dict[str, Any]:
    ended = "failed" if row.error else "done"
    return {
        "id": row.id,
        "name": row.request.get("name", ""),
        "state": ended if row.ended_at else "running" if row.started_at else "waiting",
        "created_by": row.created_by.username,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "error": row.error,
    }


def shown(row: Simulation) -> dict[str, Any]:
    request = SimulationRequest.model_validate(row.request)
    result = SimulationResult.model_validate(row.result) if row.result else None
    return SimulationDocument(**summary(row), request=request, result=result).model_dump(mode="json")
