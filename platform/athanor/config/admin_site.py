"""Django's admin, every change of which goes into the audit trail, whatever model it is of."""

from functools import wraps
from typing import Any

from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.admin.models import LogEntry
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from athanor.accounts import audit
from athanor.core import tenancy
from athanor.core.errors import TooManyRequests


class Audited(ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Beside Django's own log. Names of fields only: their values may be secret."""

    def log_addition(self, request: HttpRequest, obj: Model, message: Any) -> LogEntry:
        _record("admin.add", request, obj, message)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Model, message: Any) -> LogEntry:
        _record("admin.change", request, obj, message)
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        for obj in queryset:
            _record("admin.delete", request, obj, "")
        return super().log_deletions(request, queryset)


class SignInForm(AdminAuthenticationForm):
    """Says on the page that there were too many tries; the API answers 429."""

    def clean(self) -> Any:
        try:
            return super().clean()
        except TooManyRequests as error:
            raise ValidationError(f"{error.message}; {error.remedy}") from error


class AuditedAdminSite(AdminSite):
    login_form = SignInForm
    site_header = "Athanor"
    site_title = "Athanor"

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def seeing_all(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if self.has_permission(request):
                tenancy.see_all()
            return inner(request, *args, **kwargs)

        return seeing_all

    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        base = admin_class or ModelAdmin
        audited = type(base.__name__, (Audited, base), {"__module__": base.__module__})
        super().register(model_or_iterable, audited, **options)


def _record(action: str, request: HttpRequest, obj: Model, message: Any) -> None:
    user: Any = request.user
    facts = {"is": str(obj)[:200], "fields": message if isinstance(message, list) else str(message)[:500]}
    team_id = str(getattr(obj, "team_id", "") or "")
    with transaction.atomic():
        audit.record(action, actor=user, target=(str(obj._meta.model_name), str(obj.pk)), team_id=team_id, after=facts)
