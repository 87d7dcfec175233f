"""/alert-rules, /alerts, /notifications and /notification-preferences."""

from typing import Any

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.alerts import selectors, services
from athanor.alerts.decisions import AlertState
from athanor.alerts.models import NotificationPreference
from athanor.api.access import check_may_write, get_principal, team_named
from athanor.api.bodies import parse_body
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import PAGE_PARAMETERS, paginate, paginated_response, serialize_many
from athanor.api.parameters import refusal
from athanor.api.v1.serializers.alerts import (
    AlertRuleChangesSerializer,
    AlertRuleSerializer,
    AlertSerializer,
    NewAlertRuleSerializer,
    NotificationSerializer,
    PreferenceChangesSerializer,
    PreferenceSerializer,
    ReadSerializer,
    UnreadSerializer,
)
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer

STATES = [state.value for state in AlertState]
STATE = OpenApiParameter("state", {"type": "string", "enum": STATES}, description="Only alerts in this state.")


class AlertRulesView(APIView):
    """Requests to `/alert-rules`."""

    @extend_schema(
        operation_id="alert_rules_list",
        responses={200: page_serializer("AlertRulePage", AlertRuleSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List alert rules.

        Returns the rules of your teams."""
        return paginated_response(serialize_many(AlertRuleSerializer, selectors.rules_of(get_principal(request))))

    @extend_schema(
        operation_id="alert_rules_create",
        parameters=IDEMPOTENT,
        request=NewAlertRuleSerializer,
        responses={201: AlertRuleSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Create an alert rule.

        It is evaluated about every 15 seconds, once a minute while the platform is idle. For members who may submit
        jobs."""
        principal = get_principal(request)
        asked = parse_body(request, NewAlertRuleSerializer)
        team = team_named(principal, Permission.SUBMIT, asked.pop("team", None))

        def make() -> Response:
            return Response(AlertRuleSerializer(services.create(team, principal.user, **asked)).data, status=201)

        return run_idempotently(request, make)


class AlertRuleView(APIView):
    """Requests to `/alert-rules/{alert_rule_id}`."""

    @extend_schema(operation_id="alert_rules_show", responses={200: AlertRuleSerializer, **PROBLEMS})
    def get(self, request: Request, alert_rule_id: str) -> Response:
        """Show an alert rule.

        Returns a rule of one of your teams."""
        return Response(AlertRuleSerializer(selectors.rule_of(get_principal(request), alert_rule_id)).data)

    @extend_schema(
        operation_id="alert_rules_change",
        request=AlertRuleChangesSerializer,
        responses={200: AlertRuleSerializer, **PROBLEMS},
    )
    def patch(self, request: Request, alert_rule_id: str) -> Response:
        """Change an alert rule.

        Changes the fields that are sent; the others stay. Open alerts are decided by the new thresholds; those of a
        disabled rule are resolved. For members who may submit jobs."""
        principal = get_principal(request)
        rule = selectors.rule_of(principal, alert_rule_id)
        check_may_write(principal, rule.team_id)
        changed = services.change(rule, parse_body(request, AlertRuleChangesSerializer), principal.user)
        return Response(AlertRuleSerializer(changed).data)

    @extend_schema(operation_id="alert_rules_delete", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, alert_rule_id: str) -> Response:
        """Delete an alert rule.

        Deletes the rule with its alerts. Notifications stay in the inboxes. For members who may submit jobs."""
        principal = get_principal(request)
        rule = selectors.rule_of(principal, alert_rule_id)
        check_may_write(principal, rule.team_id)
        services.delete(rule, principal.user)
        return Response(status=204)


class AlertsView(APIView):
    """Requests to `/alerts`."""

    @extend_schema(
        operation_id="alerts_list",
        parameters=[*PAGE_PARAMETERS, STATE],
        responses={200: page_serializer("AlertPage", AlertSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List alerts.

        Returns the alerts of your teams, newest first. A pending alert that clears before it fires is not stored."""
        state = request.query_params.get("state") or None
        if state and state not in STATES:
            raise refusal("state", "choice", f"state={state[:40]!r} is none of {', '.join(STATES)}")
        rows = selectors.alerts_of(get_principal(request), state)
        found, next_cursor = paginate(request, rows)
        return paginated_response(serialize_many(AlertSerializer, found), next_cursor)


class NotificationsView(APIView):
    """Requests to `/notifications`."""

    @extend_schema(
        operation_id="notifications_list",
        parameters=PAGE_PARAMETERS,
        responses={200: page_serializer("NotificationPage", NotificationSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List your notifications.

        Returns your inbox, newest first: alerts of the teams that you belong to now."""
        found, next_cursor = paginate(request, selectors.inbox_of(get_principal(request)))
        return paginated_response(serialize_many(NotificationSerializer, found), next_cursor)


class UnreadView(APIView):
    """Requests to `/notifications:unread`."""

    @extend_schema(operation_id="notifications_unread", responses={200: UnreadSerializer, **PROBLEMS})
    def get(self, request: Request) -> Response:
        """Count your unread notifications.

        Returns how many notifications of your inbox you have not marked as read."""
        return Response(UnreadSerializer({"unread": selectors.count_unread(get_principal(request))}).data)


class ReadView(APIView):
    """Requests to `/notifications:read`."""

    @extend_schema(
        operation_id="notifications_read", request=ReadSerializer, responses={200: UnreadSerializer, **PROBLEMS}
    )
    def post(self, request: Request) -> Response:
        """Mark notifications as read.

        Marks your own notifications and returns how many are still unread. Safe to repeat."""
        principal = get_principal(request)
        ids = parse_body(request, ReadSerializer).get("ids")
        services.mark_read(principal.user, principal.team_ids, ids, timezone.now())
        return Response(UnreadSerializer({"unread": selectors.count_unread(principal)}).data)


class PreferencesView(APIView):
    """Requests to `/notification-preferences`."""

    @extend_schema(operation_id="notification_preferences_show", responses={200: PreferenceSerializer, **PROBLEMS})
    def get(self, request: Request) -> Response:
        """Show your preferences for mails.

        Returns what you get by mail, and when."""
        return Response(_preference(selectors.preference_of(get_principal(request).user)))

    @extend_schema(
        operation_id="notification_preferences_change",
        request=PreferenceChangesSerializer,
        responses={200: PreferenceSerializer, **PROBLEMS},
    )
    def patch(self, request: Request) -> Response:
        """Change your preferences for mails.

        Changes the fields that are sent, for notifications from now on."""
        user = get_principal(request).user
        return Response(_preference(services.change_preference(user, parse_body(request, PreferenceChangesSerializer))))


def _preference(row: NotificationPreference) -> dict[str, Any]:
    data: dict[str, Any] = PreferenceSerializer(row, context={"mail_is_on": bool(settings.ATHANOR.smtp_host)}).data
    return data
