"""/models/{id}/versions/{number}/documentation, /bom and /provenance: documents of a version, from the records."""

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.api.access import check, get_principal
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.model_documentation import DocumentationSerializer
from athanor.artifacts import registry_selectors as models
from athanor.artifacts.models import ModelVersion
from athanor.compliance.model_bom import bom_of
from athanor.compliance.model_documentation import documentation_of
from athanor.compliance.model_provenance import signed_provenance_of


class ModelDocumentationView(APIView):
    """Requests to `/models/{model_id}/versions/{version_number}/documentation`."""

    @extend_schema(operation_id="models_version_documentation", responses={200: DocumentationSerializer, **PROBLEMS})
    def get(self, request: Request, model_id: str, version_number: int) -> Response:
        """Document a version.

        Returns the technical documentation of a version in the form of Annex XI of the EU AI Act: what the platform
        has on record, each with the record that shows it, and sections of the model's card. Data, compute and energy
        cover the job that exported the version and those of its base models."""
        found = documentation_of(get_principal(request), _version(request, model_id, version_number))
        return Response(DocumentationSerializer(found).data)


class ModelBomView(APIView):
    """Requests to `/models/{model_id}/versions/{version_number}/bom`."""

    @extend_schema(
        operation_id="models_version_bom",
        responses={200: OpenApiResponse(OpenApiTypes.OBJECT, description="A document of CycloneDX 1.6."), **PROBLEMS},
    )
    def get(self, request: Request, model_id: str, version_number: int) -> Response:
        """Write a bill of materials.

        Returns the bill of materials of a version in the format of CycloneDX 1.6 (ML-BOM): its files, base models,
        data sets and framework, how it was trained, metrics and energy. What is not known is left out."""
        return Response(bom_of(get_principal(request), _version(request, model_id, version_number)))


class ModelProvenanceView(APIView):
    """Requests to `/models/{model_id}/versions/{version_number}/provenance`."""

    @extend_schema(
        operation_id="models_version_provenance",
        request=None,
        responses={
            200: OpenApiResponse(OpenApiTypes.OBJECT, description="A Sigstore bundle with an in-toto statement."),
            **PROBLEMS,
        },
    )
    def post(self, request: Request, model_id: str, version_number: int) -> Response:
        """Sign a provenance.

        Returns how a version was made, as a SLSA provenance over the SHA-256 of its files, signed by the active key of
        the model's team: spec, data sets, base model, job, mesh, accelerator, FLOPs and energy. Refused with 409 for an
        imported version, and for an export that does not contain these digests. The request is recorded in the audit
        trail. A token needs the scope `artifacts`."""
        version = _version(request, model_id, version_number)
        principal = get_principal(request)
        check(principal, Permission.DOWNLOAD, version.model.team_id)
        return Response(signed_provenance_of(principal, version))


def _version(request: Request, model_id: str, number: int) -> ModelVersion:
    principal = get_principal(request)
    return models.version_of(principal, models.own_model_of(principal, model_id), number)
