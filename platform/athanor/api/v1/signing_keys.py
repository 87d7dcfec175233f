"""/teams/{id}/signing-keys: the keys that sign exported models. No response contains a private half."""

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.api.access import check, get_principal, team_for
from athanor.api.bodies import parse_body
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import paginated_response, serialize_many
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.signing_keys import RevocationSerializer, SigningKeySerializer
from athanor.artifacts import grants, selectors, signing_keys
from athanor.core import tenancy


class SigningKeysView(APIView):
    """Requests to `/teams/{team_id}/signing-keys`."""

    @extend_schema(
        operation_id="signing_keys_list",
        responses={200: page_serializer("SigningKeyPage", SigningKeySerializer), **PROBLEMS},
    )
    def get(self, request: Request, team_id: str) -> Response:
        """List the signing keys of a team.

        Returns all keys, newest first, also retired and revoked ones. There is none before the first signature. Those
        of a team that shares a model with yours are listed too, to verify what you download."""
        principal = get_principal(request)
        shares = grants.team_that_shares(team_id, principal.team_ids)
        if shares is not None:
            tenancy.let_in(shares.id)
        team = shares or team_for(principal, Permission.VIEW, team_id)
        return paginated_response(serialize_many(SigningKeySerializer, signing_keys.keys_of(team)))


class SigningKeyRotateView(APIView):
    """Requests to `/teams/{team_id}/signing-keys:rotate`."""

    @extend_schema(
        operation_id="signing_keys_rotate",
        parameters=IDEMPOTENT,
        request=None,
        responses={201: SigningKeySerializer, **PROBLEMS},
    )
    def post(self, request: Request, team_id: str) -> Response:
        """Rotate the signing key of a team.

        Creates a key, which signs from now on. The private half of the active key is destroyed; signatures that it made
        stay valid. For administrators of the team."""
        principal = get_principal(request)
        team = team_for(principal, Permission.MANAGE, team_id)

        def make() -> Response:
            return Response(SigningKeySerializer(signing_keys.rotate(team, principal.user)).data, status=201)

        return run_idempotently(request, make)


class SigningKeyRevokeView(APIView):
    """Requests to `/signing-keys/{signing_key_id}:revoke`."""

    @extend_schema(
        operation_id="signing_keys_revoke",
        request=RevocationSerializer,
        responses={200: SigningKeySerializer, **PROBLEMS},
    )
    def post(self, request: Request, signing_key_id: str) -> Response:
        """Revoke a signing key.

        Signatures by it are refused from now on, also those that it made before; its private half is destroyed. This
        cannot be undone. If it is the active key, the next signature creates another. A key that is revoked already is
        returned unchanged. For administrators of the team."""
        principal = get_principal(request)
        row = signing_keys.key_of(principal, signing_key_id)
        check(principal, Permission.MANAGE, row.team_id)
        reason = parse_body(request, RevocationSerializer)["reason"]
        return Response(SigningKeySerializer(signing_keys.revoke(row, reason, principal.user)).data)


class ArtifactSignView(APIView):
    """Requests to `/artifacts/{artifact_id}:sign`."""

    @extend_schema(
        operation_id="artifacts_sign",
        request=None,
        responses={
            200: OpenApiResponse(OpenApiTypes.OBJECT, description="A Sigstore bundle: the content of `model.sig`."),
            **PROBLEMS,
        },
    )
    def post(self, request: Request, artifact_id: str) -> Response:
        """Sign an exported model.

        Returns a signature by the active key of the model's team in the OpenSSF Model Signing format, over the SHA-256
        of each file as the job registered them. Saved as `model.sig` in the model's folder, `athanor model verify` and
        other verifiers of the format check it. Refused with 409 for an export that does not contain these digests. The
        request is recorded in the audit trail. A token needs the scope `artifacts`."""
        principal = get_principal(request)
        row = selectors.readable_artifact_of(principal, artifact_id)
        check(principal, Permission.DOWNLOAD, row.reader_id)
        return Response(signing_keys.sign(row, principal.user))
