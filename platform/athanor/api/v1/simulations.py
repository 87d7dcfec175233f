"""/simulations: replays of real or generated jobs against proposed quotas and settings."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check_platform, get_principal
from athanor.api.bodies import parse_document
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import PAGE_PARAMETERS, paginate
from athanor.api.parsers import JSONParser, TextYamlParser, YamlParser
from athanor.api.v1.serializers.common import NO_LONGER_STORED, PROBLEMS
from athanor.api.v1.serializers.simulations import SimulationDocument, SimulationPage, SimulationSummary
from athanor.scheduling import simulations
from athanor.scheduling.models import Simulation
from athanor.scheduling.simulations import SimulationRequest, SimulationResult


class SimulationsView(APIView):
    """Requests to `/simulations`."""

    parser_classes = (JSONParser, YamlParser, TextYamlParser)

    @extend_schema(
        operation_id="simulations_list", parameters=PAGE_PARAMETERS, responses={200: SimulationPage, **PROBLEMS}
    )
    def get(self, request: Request) -> Response:
        """List simulations.

        Returns simulations, newest first, without their results. They are stored for ATHANOR_HISTORY_DAYS (365). For
        platform administrators and auditors."""
        _overseer(request)
        rows, next_cursor = paginate(request, simulations.all_simulations())
        items = [SimulationSummary(**_serialize_summary(row)) for row in rows]
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
        principal = _overseer(request)
        asked = parse_document(request, SimulationRequest, "invalid_simulation", "simulation")
        return run_idempotently(
            request, lambda: Response(_serialize_simulation(simulations.ask(asked, principal.user)), status=202)
        )


class SimulationView(APIView):
    """Requests to `/simulations/{simulation_id}`."""

    @extend_schema(operation_id="simulations_show", responses={200: SimulationDocument, **NO_LONGER_STORED, **PROBLEMS})
    def get(self, request: Request, simulation_id: str) -> Response:
        """Show a simulation.

        Returns the simulation with its request and, once it is done, its result. For platform administrators and
        auditors."""
        _overseer(request)
        return Response(_serialize_simulation(simulations.find(simulation_id)))


def _overseer(request: Request) -> Principal:
    principal = get_principal(request)
    check_platform(principal, Permission.OVERSEE)
    return principal


def _serialize_summary(row: Simulation) -> dict[str, Any]:
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


def _serialize_simulation(row: Simulation) -> dict[str, Any]:
    request = SimulationRequest.model_validate(row.request)
    result = SimulationResult.model_validate(row.result) if row.result else None
    return SimulationDocument(**_serialize_summary(row), request=request, result=result).model_dump(mode="json")
