"""/second-factors: the authenticator app, passkeys and recovery codes of the signed-in user."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from athanor.accounts import passkeys, second_factors
from athanor.accounts.models import User
from athanor.api.bodies import parse_body
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.v1.account import AccountView
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.second_factors import (
    AddedPasskeySerializer,
    AppCodeSerializer,
    AppSetupSerializer,
    NewPasskeySerializer,
    NewRecoveryCodesSerializer,
    PasskeyNameSerializer,
    PasskeySerializer,
    PasswordConfirmationSerializer,
    SecondFactorsSerializer,
)
from athanor.api.v1.serializers.session import PasskeyOptionsSerializer


class SecondFactorsView(AccountView):
    """Requests to `/second-factors`."""

    @extend_schema(operation_id="second_factors_show", responses={200: SecondFactorsSerializer, **PROBLEMS})
    def get(self, request: Request) -> Response:
        """Show your second factors.

        Returns whether an authenticator app is set up, the recovery codes that are left, and the passkeys. Only a
        dashboard session may call it, not a token."""
        user = _user(request)
        found = second_factors.overview(user)
        body = {
            "has_password": user.has_usable_password(),
            "authenticator_app_since": found.authenticator_app_since,
            "recovery_codes_left": found.recovery_codes_left,
            "passkeys": passkeys.passkeys_of(user),
            "passkeys_available": passkeys.are_available(),
        }
        return Response(SecondFactorsSerializer(body).data)


class AppBeginView(AccountView):
    """Requests to `/second-factors/authenticator-app:begin`."""

    @extend_schema(
        operation_id="second_factors_app_begin",
        request=PasswordConfirmationSerializer,
        responses={200: AppSetupSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Begin the setup of an authenticator app.

        Returns a new secret for the app. It takes effect when a code of it is confirmed within ten minutes. Only a
        dashboard session may call it, not a token."""
        setup = second_factors.begin_app(request._request, _user(request), _password(request))
        return Response(AppSetupSerializer(setup).data)


class AppConfirmView(AccountView):
    """Requests to `/second-factors/authenticator-app:confirm`."""

    @extend_schema(
        operation_id="second_factors_app_confirm",
        request=AppCodeSerializer,
        responses={200: NewRecoveryCodesSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Confirm the authenticator app.

        Adds the authenticator app that this session began to set up. Your other sessions end. Only a dashboard
        session may call it, not a token."""
        code = parse_body(request, AppCodeSerializer)["code"]
        return _codes(second_factors.confirm_app(request._request, _user(request), code))


class AppRemoveView(AccountView):
    """Requests to `/second-factors/authenticator-app:remove`."""

    @extend_schema(
        operation_id="second_factors_app_remove",
        request=PasswordConfirmationSerializer,
        responses={204: None, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Remove the authenticator app.

        Removes the app. Recovery codes are removed with the last second factor. Your other sessions end. Only a
        dashboard session may call it, not a token."""
        second_factors.remove_app(request._request, _user(request), _password(request))
        return Response(status=204)


class RecoveryCodesView(AccountView):
    """Requests to `/second-factors/recovery-codes:generate`."""

    @extend_schema(
        operation_id="second_factors_recovery_codes",
        request=PasswordConfirmationSerializer,
        responses={200: NewRecoveryCodesSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Generate new recovery codes.

        Replaces the recovery codes; the old ones stop working. Only a dashboard session may call it, not a token."""
        return _codes(second_factors.generate_recovery_codes(request._request, _user(request), _password(request)))


class PasskeyBeginView(AccountView):
    """Requests to `/second-factors/passkeys:begin`."""

    @extend_schema(
        operation_id="second_factors_passkey_begin",
        request=PasswordConfirmationSerializer,
        responses={200: PasskeyOptionsSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Begin the registration of a passkey.

        Returns the options for `navigator.credentials.create`. Only a dashboard session may call it, not a token."""
        return Response(passkeys.begin_registration(request._request, _user(request), _password(request)))


class PasskeysView(AccountView):
    """Requests to `/second-factors/passkeys`."""

    @extend_schema(
        operation_id="second_factors_passkey_add",
        parameters=IDEMPOTENT,
        request=NewPasskeySerializer,
        responses={201: AddedPasskeySerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Add a passkey.

        Adds the passkey that this session began to register. Your other sessions end. Only a dashboard
        session may call it, not a token."""
        given = parse_body(request, NewPasskeySerializer)

        def make() -> Response:
            row, codes = passkeys.complete_registration(
                request._request, _user(request), given["name"], given["credential"]
            )
            return Response(AddedPasskeySerializer({"passkey": row, "recovery_codes": codes}).data, status=201)

        return run_idempotently(request, make)


class PasskeyView(AccountView):
    """Requests to `/second-factors/passkeys/{passkey_id}`."""

    @extend_schema(
        operation_id="second_factors_passkey_rename",
        request=PasskeyNameSerializer,
        responses={200: PasskeySerializer, **PROBLEMS},
    )
    def patch(self, request: Request, passkey_id: int) -> Response:
        """Rename a passkey.

        Changes the name by which you recognise the passkey. Only a dashboard session may call it, not a token."""
        row = passkeys.rename(_user(request), passkey_id, parse_body(request, PasskeyNameSerializer)["name"])
        return Response(PasskeySerializer(row).data)


class PasskeyRemoveView(AccountView):
    """Requests to `/second-factors/passkeys/{passkey_id}:remove`."""

    @extend_schema(
        operation_id="second_factors_passkey_remove",
        request=PasswordConfirmationSerializer,
        responses={204: None, **PROBLEMS},
    )
    def post(self, request: Request, passkey_id: int) -> Response:
        """Remove a passkey.

        Removes the passkey. Recovery codes are removed with the last second factor. Your other sessions end. Only a
        dashboard session may call it, not a token."""
        passkeys.remove(request._request, _user(request), passkey_id, _password(request))
        return Response(status=204)


def _codes(codes: list[str]) -> Response:
    return Response(NewRecoveryCodesSerializer({"recovery_codes": codes}).data)


def _password(request: Request) -> str:
    return str(parse_body(request, PasswordConfirmationSerializer)["current_password"])


def _user(request: Request) -> User:
    assert isinstance(request.user, User)
    return request.user
