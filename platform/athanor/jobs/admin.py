"""Pages of jobs and attempts in Django's admin. Everything is read-only but the actions."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from athanor.accounts.admin_tools import SeenInline, SeenOnly, act_on_each, link, pretty
from athanor.jobs import services
from athanor.jobs.models import Attempt, Job


class AttemptInline(SeenInline):
    """The attempts of a job."""

    model = Attempt
    fields = ("number", "status", "reason", "native_state", "submitted_at", "started_at", "ended_at", "observed_at")
    ordering = ("number",)


def _admin_action(description: str, service: services.JobAction, done: str) -> Callable[..., None]:
    """Build an admin action from a request that users can make."""

    @admin.action(description=description, permissions=["operate"])
    def ask(page: Any, request: Any, rows: QuerySet[Job]) -> None:
        act_on_each(request, page, rows, lambda job: service(job.pk, request.user.username), done)

    ask.__name__ = service.__name__
    return ask


@admin.register(Job)
class JobAdmin(SeenOnly):
    """Jobs, read-only. The actions write the desired state, never the status."""

    list_display = ("name", "team", "status", "reason", "health", "created_by", "created_at", "opened")
    list_filter = (
        "status",
        "health",
        "desired",
        ("team", admin.RelatedOnlyFieldListFilter),
        ("pool", admin.RelatedOnlyFieldListFilter),
    )
    list_select_related = ("team", "created_by")
    search_fields = ("=id", "name", "=created_by__username", "=project")
    date_hierarchy = "created_at"
    ordering = ("-id",)
    inlines = (AttemptInline,)
    actions = (
        _admin_action("Ask to stop", services.request_stop, "Asked to stop"),
        _admin_action("Ask to pause", services.request_pause, "Asked to pause"),
        _admin_action("Let go on", services.request_resume, "Asked to go on"),
    )
    fields = (
        "id", "opened", "name", "team", "project", "created_by", "labels_shown", "status", "why", "desired", "health",
        "priority", "pool", "slots", "created_at", "queued_at", "admitted_at", "started_at", "finished_at",
        "act_after", "expires_at", "forked_from", "spec_shown", "resolved_shown",
    )  # fmt: skip
    readonly_fields = ("opened", "why", "labels_shown", "spec_shown", "resolved_shown")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Return jobs with what the list shows of them."""
        rows: QuerySet[Job] = super().get_queryset(request)
        return rows.select_related("team", "created_by", "pool__cluster", "forked_from")

    @admin.display(description="dashboard")
    def opened(self, job: Job) -> str:
        """Return a link to the job's page in the dashboard."""
        return link(f"/jobs/{job.pk}", "open")

    @admin.display(description="why")
    def why(self, job: Job) -> str:
        """Return the reason of the status with its remedy."""
        meaning = job.explanation
        return f"{meaning['message']} {meaning['remedy']}" if meaning else "-"

    @admin.display(description="labels")
    def labels_shown(self, job: Job) -> str:
        """Return the labels as formatted JSON."""
        return pretty(job.labels)

    @admin.display(description="spec as written")
    def spec_shown(self, job: Job) -> str:
        """Return the submitted spec as formatted JSON."""
        return pretty(job.spec)

    @admin.display(description="spec with every default")
    def resolved_shown(self, job: Job) -> str:
        """Return the resolved spec as formatted JSON."""
        return pretty(job.resolved_spec)


@admin.register(Attempt)
class AttemptAdmin(SeenOnly):
    """Attempts, read-only."""

    list_display = ("id", "job", "number", "status", "reason", "native_state", "exit_status", "observed_at", "ended_at")
    list_filter = ("status", "reason")
    list_select_related = ("job",)
    search_fields = ("=id", "=job__id", "=backend_name", "=backend_id")
    date_hierarchy = "created_at"
    ordering = ("-id",)
    exclude = ("end_report", "lease_token")
    readonly_fields = ("end_shown",)

    @admin.display(description="what its agent reported at the end")
    def end_shown(self, attempt: Attempt) -> str:
        """Return the report of the agent as formatted JSON."""
        return pretty(attempt.end_report)
