"""/lineage: what an object was made of, and what was made from it."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import get_principal
from athanor.api.parameters import IntegerParameter, refusal
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.lineage import LineageSerializer
from athanor.artifacts import lineage
from athanor.artifacts.lineage import DEFAULT_DEPTH, DEFAULT_LIMIT, MAX_DEPTH, MAX_LIMIT, Direction

LIMIT = IntegerParameter(
    "limit", "Maximum number of nodes in each direction.", min_value=1, max_value=MAX_LIMIT, default=DEFAULT_LIMIT
)
DEPTH = IntegerParameter(
    "depth", "Maximum distance from the object, in edges.", min_value=1, max_value=MAX_DEPTH, default=DEFAULT_DEPTH
)


class LineageView(APIView):
    """Requests to `/lineage`."""

    @extend_schema(
        operation_id="lineage_show",
        parameters=[
            OpenApiParameter(
                "of",
                {"type": "string", "minLength": 1},
                required=True,
                description="Id of a data set (`dset_...`), a tokenised data set (`prep_...`), a data report "
                "(`rep_...`), a job, a checkpoint, an artifact of kind `model`, a version (`mdl_...@NUMBER`) or an "
                "alias (`mdl_...@ALIAS`).",
            ),
            OpenApiParameter(
                "direction",
                str,
                enum=[direction.value for direction in Direction],
                default=Direction.BOTH.value,
                description="`up`: what it was made of; `down`: what was made from it.",
            ),
            LIMIT.openapi,
            DEPTH.openapi,
        ],
        responses={200: LineageSerializer, **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """Show the lineage of an object.

        Returns data sets, jobs, checkpoints, models, versions and aliases of your teams that the object was made of or
        that were made from it, deleted ones included, and how they are related. Of a model that another team shares it
        shows the version, its aliases and its export, not what they were made of. Downloads are included for those who
        may read the audit trail of the team."""
        of = request.query_params.get("of", "")
        if not of:
            raise refusal("of", "required", "of is missing", "give the id of an object, as in of=job_...")
        direction = Direction(request.query_params.get("direction", Direction.BOTH.value))
        found = lineage.lineage_of(get_principal(request), of, direction, LIMIT.read(request), DEPTH.read(request))
        return Response(LineageSerializer(found).data)
