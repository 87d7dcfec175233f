"""Shared parts of Django's admin pages: read-only pages, actions that call services, links."""

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
    """A read-only page. Services create and change the rows.

    Actions require the permission `operate`, so that auditors cannot use them.
    """

    list_per_page = 50
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False."""
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the user has Django's change permission, which the actions require."""
        meta = self.opts
        return bool(request.user.has_perm(f"{meta.app_label}.change_{meta.model_name}"))


class SeenInline(admin.TabularInline):  # type: ignore[type-arg] # generic in the stubs only
    """A read-only inline."""

    extra = 0
    can_delete = False
    show_change_link = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False."""
        return False


def act_on_each(request: HttpRequest, page: Any, rows: QuerySet[Any], act: Callable[[Any], object], done: str) -> None:
    """Call a service for each row: each call is audited, and an error with one row does not stop the others."""
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
    """Return a link for an admin page."""
    return format_html('<a href="{}">{}</a>', path, text)


def pretty(value: Any) -> str:
    """Return the value as indented JSON."""
    if value in (None, "", {}, []):
        return NOTHING
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return format_html('<pre style="margin:0;max-height:32em;overflow:auto;white-space:pre-wrap">{}</pre>', text)
