"""What the pages of Django's admin share: pages to look at, actions that go through services, links."""

import json
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from athanor.core.errors import AthanorError

NOTHING = "-"


class SeenOnly(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Made and changed by services only. Actions ask for the permission `operate`, so that an auditor only looks."""

    list_per_page = 50
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """What Django calls changing, for what is changed by actions alone."""
        meta = self.opts
        return bool(request.user.has_perm(f"{meta.app_label}.change_{meta.model_name}"))


class SeenInline(admin.TabularInline):  # type: ignore[type-arg] # generic in the stubs only
    extra = 0
    can_delete = False
    show_change_link = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def act_on_each(request: HttpRequest, page: Any, rows: QuerySet[Any], act: Callable[[Any], object], done: str) -> None:
    """Through the service, row by row: each is audited, and one that is refused stops no other."""
    count = 0
    for row in rows:
        try:
            act(row)
        except AthanorError as error:
            page.message_user(request, f"{row}: {error.message}; {error.remedy}", messages.ERROR)
        else:
            count += 1
    if count:
        page.message_user(request, f"{done}: {count}", messages.SUCCESS)


def link(path: str, text: str) -> str:
    return format_html('<a href="{}">{}</a>', path, text)


def pretty(value: Any) -> str:
    """JSON as a person reads it."""
    if value in (None, "", {}, []):
        return NOTHING
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return format_html('<pre style="margin:0;max-height:32em;overflow:auto;white-space:pre-wrap">{}</pre>', text)
