"""/second-factors: the authenticator app, passkeys and recovery codes of the signed-in user."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from athanor.accounts import passkeys, second_factors
from athanor.accounts.models import User
from athanor.api.bodies import read
from athanor.api.idempotency import IDEMPOTENT, once
from athanor.api.v1.account import LONGEST_PASSWORD, AccountView
from athanor.api.v1.session import PasskeyOptionsSerializer
from athanor.api.v1.shapes import PROBLEMS


class PasswordConfirmationSerializer(serializers.Serializer[Any]):
    """Changes of second factors need the current password."""

    current_password = serializers.CharField(max_length=LONGEST_PASSWORD, trim_whitespace=False)


class AppSetupSerializer(serializers.Serializer[Any]):
    """What an authenticator app needs. It is not shown again."""

    secret = serializers.CharField(help_text="Base32, for apps that scan no QR code.")
    uri = serializers.CharField(help_text="otpauth://totp/...")
    qr_svg = serializers.CharField(help_text="The URI as a QR code, an SVG document.")


class AppCodeSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(max_length=50, help_text="The code that the app shows now.")


class NewRecoveryCodesSerializer(serializers.Serializer[Any]):
    recovery_codes = serializers.ListField(
        child=serializers.CharField(),
        help_text="New codes, each of which works once. They are not shown again. Empty if there were some already.",
    )


class PasskeySerializer(serializers.Serializer[Any]):
    id = serializers.CharField(source="pk")
    name = serializers.CharField(source="data.name")
    created_at = serializers.DateTimeField()
    last_used_at = serializers.DateTimeField(allow_null=True)


class NewPasskeySerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)
    credential = serializers.DictField(
        help_text="The PublicKeyCredential that navigator.credentials.create returned, as JSON (base64url)."
    )


class PasskeyNameSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)


class AddedPasskeySerializer(NewRecoveryCodesSerializer):
    passkey = PasskeySerializer()


class SecondFactorsSerializer(serializers.Serializer[Any]):
    """The second factors of the user who asks."""

    has_password = serializers.BooleanField(help_text="Second factors need a password; false with single sign-on only.")
    authenticator_app_since = serializers.DateTimeField(allow_null=True)
    recovery_codes_left = serializers.IntegerField(allow_null=True)
    passkeys = PasskeySerializer(many=True)
    passkeys_available = serializers.BooleanField(
        help_text="Whether browsers allow passkeys for the platform's address."
    )


class SecondFactorsView(AccountView):
    @extend_schema(operation_id="second_factors_show", responses={200: SecondFactorsSerializer, **PROBLEMS})
    def get(self, request: Request) -> Response:
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
    @extend_schema(
        operation_id="second_factors_app_begin",
        description="Makes the secret of an authenticator app. It counts once a code of it is confirmed.",
        request=PasswordConfirmationSerializer,
        responses={200: AppSetupSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        setup = second_factors.begin_app(request._request, _user(request), _password(request))
        return Response(AppSetupSerializer(setup).data)


class AppConfirmView(AccountView):
    @extend_schema(
        operation_id="second_factors_app_confirm",
        description="Adds the authenticator app whose setup was begun in this session. Other sessions end.",
        request=AppCodeSerializer,
        responses={200: NewRecoveryCodesSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        code = read(AppCodeSerializer, request)["code"]
        return _codes(second_factors.confirm_app(request._request, _user(request), code))


class AppRemoveView(AccountView):
    @extend_schema(
        operation_id="second_factors_app_remove",
        description="Removes the authenticator app; with the last factor, the recovery codes. Other sessions end.",
        request=PasswordConfirmationSerializer,
        responses={204: None, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        second_factors.remove_app(request._request, _user(request), _password(request))
        return Response(status=204)


class RecoveryCodesView(AccountView):
    @extend_schema(
        operation_id="second_factors_recovery_codes",
        description="Replaces the recovery codes. The old ones stop working.",
        request=PasswordConfirmationSerializer,
        responses={200: NewRecoveryCodesSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        return _codes(second_factors.generate_recovery_codes(request._request, _user(request), _password(request)))


class PasskeyBeginView(AccountView):
    @extend_schema(
        operation_id="second_factors_passkey_begin",
        description="Returns the options for navigator.credentials.create.",
        request=PasswordConfirmationSerializer,
        responses={200: PasskeyOptionsSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        return Response(passkeys.begin_registration(request._request, _user(request), _password(request)))


class PasskeysView(AccountView):
    @extend_schema(
        operation_id="second_factors_passkey_add",
        description="Adds the passkey whose registration was begun in this session. Other sessions end.",
        parameters=IDEMPOTENT,
        request=NewPasskeySerializer,
        responses={201: AddedPasskeySerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        given = read(NewPasskeySerializer, request)

        def make() -> Response:
            row, codes = passkeys.complete_registration(
                request._request, _user(request), given["name"], given["credential"]
            )
            return Response(AddedPasskeySerializer({"passkey": row, "recovery_codes": codes}).data, status=201)

        return once(request, make)


class PasskeyView(AccountView):
    @extend_schema(
        operation_id="second_factors_passkey_rename",
        request=PasskeyNameSerializer,
        responses={200: PasskeySerializer, **PROBLEMS},
    )
    def patch(self, request: Request, passkey_id: int) -> Response:
        row = passkeys.rename(_user(request), passkey_id, read(PasskeyNameSerializer, request)["name"])
        return Response(PasskeySerializer(row).data)


class PasskeyRemoveView(AccountView):
    @extend_schema(
        operation_id="second_factors_passkey_remove",
        description="Removes a passkey; with the last factor, the recovery codes. Other sessions end.",
        request=PasswordConfirmationSerializer,
        responses={204: None, **PROBLEMS},
    )
    def post(self, request: Request, passkey_id: int) -> Response:
        passkeys.remove(request._request, _user(request), passkey_id, _password(request))
        return Response(status=204)


def _codes(codes: list[str]) -> Response:
    return Response(NewRecoveryCodesSerializer({"recovery_codes": codes}).data)


def _password(request: Request) -> str:
    return str(read(PasswordConfirmationSerializer, request)["current_password"])


def _user(request: Request) -> User:
    assert isinstance(request.user, User)
    return request.user
