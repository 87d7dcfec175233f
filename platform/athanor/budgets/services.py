"""Changes of budgets by administrators, and which budgets a user sees."""

from collections.abc import Callable
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import User
from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.budgets import ledger
from athanor.budgets.ledger import Book
from athanor.budgets.models import Budget
from athanor.budgets.periods import Every, bounds, seconds_of
from athanor.clusters import selectors as clusters
from athanor.core import task_triggers
from athanor.core.errors import Conflict, FieldProblem, Invalid, NotFound
from athanor.quotas import services as quotas
from athanor.quotas.changes import unknown_accelerator
from athanor.quotas.models import QuotaNode

Precondition = Callable[[Budget], None]
FACTS = ("name", "unit", "currency", "accelerator", "period", "amount", "soft_percent", "hard", "active")


def sees_all(principal: Principal) -> bool:
    """Return whether the user sees all budgets."""
    return Permission.OVERSEE in principal.platform


def visible_to(principal: Principal, *, active_only: bool = False) -> QuerySet[Budget]:
    """Of the nodes from their teams' leaves up to the organisation; all for who administers or audits the platform."""
    rows = Budget.objects.select_related("node").order_by("node__name", "name")
    if active_only:
        rows = rows.filter(active=True)
    return rows if sees_all(principal) else rows.filter(node__in=_path_of(principal.team_ids))


def find(principal: Principal, budget_id: str) -> Budget:
    """Return a budget that the user sees, or raise NotFound."""
    row = visible_to(principal).filter(pk=budget_id).first()
    if row is None:
        raise NotFound("budget", budget_id)
    return row


def create(node_id: str, actor: User, **facts: Any) -> Budget:
    """Create a budget and open its current period."""
    node = QuotaNode.objects.filter(pk=node_id).first()
    if node is None:
        detail = f"node_id={node_id!r} is no node of the quota tree"
        raise Invalid(
            "invalid_budget", detail, remedy="take an id from it", problems=_problem("node_id", "unknown", detail)
        )
    accelerator, known = facts.get("accelerator"), clusters.accelerators()
    if accelerator and accelerator not in known:
        detail = unknown_accelerator(accelerator, known)
        remedy = "name an accelerator of a pool, or none for all"
        raise Invalid("invalid_budget", detail, remedy=remedy, problems=_problem("accelerator", "unknown", detail))
    if facts["unit"] == Budget.Unit.MONEY and not facts.get("currency"):
        detail = "a budget of money needs a currency"
        raise Invalid(
            "invalid_budget", detail, remedy="add it, such as USD", problems=_problem("currency", "required", detail)
        )
    if facts["unit"] == Budget.Unit.SLOT_HOURS:
        facts["currency"] = ""
    try:
        with transaction.atomic():
            quotas.locked_root()
            row = Budget.objects.create(node=node, **facts)
            _open_current(row)
            audit.record("budget.create", actor=actor, target=("budget", row.id), after=_facts(row))
            task_triggers.trigger_after_commit(task_triggers.METER)
    except IntegrityError as error:
        raise _exists(node, facts["name"]) from error
    return row


def change(budget_id: str, actor: User, precondition: Precondition, **changes: Any) -> Budget:
    """Change a budget; omitted fields are unchanged. A new amount applies immediately, also to the current period."""
    try:
        with transaction.atomic():
            quotas.locked_root()
            row = Budget.objects.select_for_update(no_key=True, of=("self",)).select_related("node").get(pk=budget_id)
            precondition(row)
            before = _facts(row)
            for name, value in changes.items():
                setattr(row, name, value)
            after = _facts(row)
            if after == before:
                return row
            row.version += 1
            row.save()
            _open_current(row)
            audit.record("budget.change", actor=actor, target=("budget", row.id), before=before, after=after)
            for task in (task_triggers.METER, task_triggers.ADMIT):
                task_triggers.trigger_after_commit(task)
    except IntegrityError as error:
        raise _exists(row.node, row.name) from error
    return row


def node_paths() -> dict[str, str]:
    """Return, by node id, the names from below the root down to the node, joined by slashes."""
    rows = {node: (parent, name) for node, parent, name in QuotaNode.objects.values_list("id", "parent_id", "name")}
    found: dict[str, str] = {}
    for node in rows:
        names: list[str] = []
        at: str | None = node
        while at is not None:
            parent, name = rows[at]
            if parent is not None or not names:
                names.append(name)
            at = parent
        found[node] = "/".join(reversed(names))
    return found


def _open_current(row: Budget) -> None:
    """Open the current period of an active budget, or adjust it to the budget's amount."""
    now = timezone.now()
    start, end = bounds(Every(row.period), now)
    if not row.active:
        return
    period = ledger.open_period(row, seconds_of(start), seconds_of(end), now)
    book = Book([period.pk], [], now)
    difference = row.amount - book.periods[period.pk].amount
    if difference:
        book.adjust(period.pk, difference)
        book.write()


def _path_of(team_ids: frozenset[str]) -> set[str]:
    parents = dict(QuotaNode.objects.values_list("id", "parent_id"))
    found: set[str] = set()
    for leaf in QuotaNode.objects.filter(team__in=team_ids).values_list("id", flat=True):
        at: str | None = leaf
        while at is not None:
            found.add(at)
            at = parents[at]
    return found


def _facts(row: Budget) -> dict[str, Any]:
    return {"node": row.node_id, **{name: getattr(row, name) for name in FACTS}}


def _exists(node: QuotaNode, name: str) -> Conflict:
    detail = f"{node.name} has a budget {name!r} already"
    return Conflict("budget_exists", detail, remedy="choose another name, or change that one")


def _problem(field: str, code: str, detail: str) -> tuple[FieldProblem]:
    return (FieldProblem(f"/{field}", code, detail),)
