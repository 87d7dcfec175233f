"""/presets and /spec/schema: job specs to start from, and the schema of a spec."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.pagination import paginated_response
from athanor.api.v1.serializers.catalog import PresetSerializer
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.clusters.models import Cluster
from athanor.clusters.selectors import enabled_clusters, pools_of
from athanor.jobs.services import pool_shape
from athanor.specs import fit
from athanor.specs.presets import PRESETS, Preset
from athanor.specs.v1 import JobSpec


class PresetsView(APIView):
    """Requests to `/presets`."""

    @extend_schema(
        operation_id="presets_list",
        responses={
            200: page_serializer("PresetPage", PresetSerializer),
            **PROBLEMS,
        },
    )
    def get(self, request: Request) -> Response:
        """List presets.

        Returns complete job specs to start from, with the clusters that each fits."""
        clusters = list(enabled_clusters())
        return paginated_response([_preset(preset, clusters) for preset in PRESETS.values()])


class SpecSchemaView(APIView):
    """Requests to `/spec/schema`."""

    authentication_classes = ()
    permission_classes = ()

    @extend_schema(
        operation_id="spec_schema",
        responses={200: OpenApiResponse(OpenApiTypes.OBJECT, description="A JSON Schema.")},
        auth=[],
    )
    def get(self, request: Request) -> Response:
        """Get the JSON Schema of the job spec.

        Returns the schema by which editors can check and complete a spec. Needs no authentication."""
        return Response(JobSpec.model_json_schema())


def _preset(preset: Preset, clusters: list[Cluster]) -> dict[str, Any]:
    spec = preset.parsed()
    return {
        "name": preset.name,
        "title": preset.title,
        "description": preset.description,
        "num_parameters": _num_parameters(spec),
        "fits": {cluster.name: _fits(spec, cluster) for cluster in clusters},
        "spec": preset.spec,
        "spec_yaml": preset.yaml,
    }


def _num_parameters(spec: JobSpec) -> int:
    assert spec.training is not None  # of every preset
    return spec.training.model.resolve().num_parameters(spec.training.tokenizer.vocab_size)


def _fits(spec: JobSpec, cluster: Cluster) -> bool:
    pools = [pool for pool in pools_of(cluster) if pool.accelerator == spec.resources.accelerator]
    return any(not fit.rejections(spec, pool_shape(pool)) for pool in pools)
