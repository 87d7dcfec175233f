"""Django's admin site, which records every change of every model in the audit trail."""

from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.admin.models import LogEntry
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.html import format_html

from athanor.accounts import audit, second_factors, sign_on_expiry
from athanor.accounts.roles import PlatformRole
from athanor.core import tenancy
from athanor.core.errors import AthanorError, TooManyRequests

# What other packages would show: groups of rights that mean nothing here, an identity provider's secrets, keys of
# sessions.
OTHERS = frozenset({"auth", "account", "socialaccount", "usersessions", "mfa"})


class Audited(ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Audits changes in addition to Django's own log, with the names of fields only: their values may be secret."""

    def log_addition(self, request: HttpRequest, obj: Model, message: Any) -> LogEntry:
        """Record an addition."""
        _record("admin.add", request, obj, message)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Model, message: Any) -> LogEntry:
        """Record a change."""
        _record("admin.change", request, obj, message)
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        """Record deletions."""
        for obj in queryset:
            _record("admin.delete", request, obj, "")
        return super().log_deletions(request, queryset)

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Show the form, with a service's refusal above it."""
        return _show_refusal(self, request, super().changeform_view, *args, **kwargs)

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Show the confirmation, with a service's refusal above it."""
        return _show_refusal(self, request, super().delete_view, *args, **kwargs)


def _show_refusal(page: Any, request: HttpRequest, view: Any, *args: Any, **kwargs: Any) -> Any:
    """Show a service's refusal above the form."""
    try:
        return view(request, *args, **kwargs)
    except AthanorError as error:
        page.message_user(request, f"{error.message}; {error.remedy}", messages.ERROR)
        return HttpResponseRedirect(request.get_full_path())


def may_enter(user: Any) -> bool:
    """Return whether the user has a role on the platform."""
    if user.is_authenticated and sign_on_expiry.is_expired(user):
        return False
    return user.is_active and getattr(user, "platform_role", PlatformRole.NONE) != PlatformRole.NONE


class SignInForm(AdminAuthenticationForm):
    """Signs in users without a second factor. Shows too many tries as an error of the form; the API answers 429."""

    def confirm_login_allowed(self, user: Any) -> None:
        """Refuse users who may not enter, and those with a second factor or who must set one up."""
        if not may_enter(user):
            super().confirm_login_allowed(user)
        if second_factors.kinds_of(user):
            page = format_html('<a href="/sign-in?next=/admin/">{}</a>', "the dashboard's sign-in page")
            raise ValidationError(
                format_html("This account has a second factor: sign in on {}, which leads back here.", page),
                code="second_factor_required",
            )
        if second_factors.must_set_up(user):
            page = format_html('<a href="/account">{}</a>', "the dashboard's page Account")
            raise ValidationError(
                format_html("This account needs a second factor: set one up on {}.", page),
                code="second_factor_setup_required",
            )

    def clean(self) -> Any:
        """Validate the form, with too many tries as an error of it."""
        try:
            return super().clean()
        except TooManyRequests as error:
            raise ValidationError(f"{error.message}; {error.remedy}") from error


class AuditedAdminSite(AdminSite):
    """The admin site: every registered page is audited."""

    login_form = SignInForm
    site_header = "Athanor"
    site_title = "Athanor"
    index_title = "Administration"
    site_url = None  # the link to the dashboard is in the template, by its name

    def has_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is staff or has a platform role, and has the second factor that is required."""
        user: Any = request.user
        return (super().has_permission(request) or may_enter(user)) and not second_factors.must_set_up(user)

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """Wrap a view of the site."""
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def seeing_all(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if self.has_permission(request):
                tenancy.see_all()
            return inner(request, *args, **kwargs)

        return seeing_all

    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        """Register a model with an audited page."""
        models: list[Any] = [model_or_iterable] if isinstance(model_or_iterable, type) else model_or_iterable
        base = admin_class or ModelAdmin
        audited = type(base.__name__, (Audited, base), {"__module__": base.__module__})
        super().register([model for model in models if model._meta.app_label not in OTHERS], audited, **options)


def _record(action: str, request: HttpRequest, obj: Model, message: Any) -> None:
    user: Any = request.user
    facts = {"is": str(obj)[:200], "fields": message if isinstance(message, list) else str(message)[:500]}
    team_id = str(getattr(obj, "team_id", "") or "")
    with transaction.atomic():
        audit.record(action, actor=user, target=(str(obj._meta.model_name), str(obj.pk)), team_id=team_id, after=facts)
