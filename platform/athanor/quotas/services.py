"""Changes of the quota tree. All changes of a request are applied in one transaction, or none."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.utils import timezone

from athanor.accounts import audit, members
from athanor.accounts.models import Team, User
from athanor.core import task_triggers
from athanor.core.errors import Conflict
from athanor.quotas import changes, selectors
from athanor.quotas.models import AdmissionSettings, NominalChange, QuotaGrant, QuotaNode
from athanor.quotas.tree import LIMITS, ROOT, Node, Tree, nominals, path_of

Precondition = Callable[[QuotaNode], None]


def root() -> QuotaNode:
    """Return the organisation's node; create it if there is none."""
    return QuotaNode.objects.get_or_create(parent=None, name=ROOT)[0]


def locked_root() -> QuotaNode:
    """Take the admission lock, which admission and quota changes hold until the end of their transaction."""
    root()
    return QuotaNode.objects.select_for_update(no_key=True).get(parent=None)


def leaf_of(team: Team) -> QuotaNode:
    """Return the leaf of a team; create it below the root if there is none."""
    found = QuotaNode.objects.filter(team=team).first()
    if found:
        return found
    top = root()
    taken = QuotaNode.objects.filter(parent=top, name=team.name).exists()  # by a group
    defaults = {"parent": top, "name": f"{team.name}-{team.id[-6:].lower()}" if taken else team.name}
    return QuotaNode.objects.get_or_create(team=team, defaults=defaults)[0]


def settings() -> AdmissionSettings:
    """Return the admission settings; create them with defaults if there are none."""
    return AdmissionSettings.objects.get_or_create(pk=1)[0]


def change_tree(change: Callable[[Tree], Tree], actor: User, precondition: Precondition | None = None) -> None:
    """Replace the tree by the result of `change` (quotas/changes.py), with an audit record per node.

    `precondition` is called with the organisation's row under the lock and may raise. Raises what `change` raises, and
    Conflict for a group that is still in use.
    """
    try:
        with transaction.atomic():
            top = locked_root()
            if precondition:
                precondition(top)
            before = selectors.tree()
            after = change(before)
            _store(before, after, actor)
    except ProtectedError as error:
        needs = ", ".join(sorted({str(thing._meta.verbose_name) for thing in error.protected_objects}))
        detail = f"a group that would be deleted still has a {needs}"
        raise Conflict(
            "group_in_use",
            detail,
            remedy="leave the group: its budget keeps the record of what was spent; switch it off to end it",
        ) from error
    except IntegrityError as error:
        detail = "a team with the name of a group was created meanwhile"
        raise Conflict("name_taken", detail, remedy="choose another name for the group") from error


def create_team(name: str, limits: Mapping[str, int | None], actor: User) -> Team:
    """Create a team with these limits, in one transaction."""
    with transaction.atomic():
        if limits:
            locked_root()  # before anything that the audit trail records
        team = members.create_team(name, actor)
        if limits:
            change_limits(team, limits, actor)
        return Team.objects.select_related("quota_node").get(pk=team.pk)


def change_limits(
    team: Team, limits: Mapping[str, int | None], actor: User, precondition: Callable[[QuotaNode], None] | None = None
) -> QuotaNode:
    """Change limits of a team's leaf; omitted ones are unchanged.

    `precondition` is called with the leaf and may raise.
    """
    leaf = leaf_of(team)

    def with_limits(tree: Tree) -> Tree:
        if precondition:
            precondition(_row(leaf.id))
        kept = {name: value for name, value in tree[leaf.id].limits.items() if name not in limits}
        new = {name: value for name, value in limits.items() if value is not None}
        return {**tree, leaf.id: replace(tree[leaf.id], limits={**kept, **new})}

    change_tree(with_limits, actor)
    return _row(leaf.id)


def change_settings(values: Mapping[str, Any], actor: User, precondition: Callable[[AdmissionSettings], None]) -> None:
    """Change admission settings, with an audit record.

    `precondition` is called with the row under the lock and may raise. Values that are equal change nothing.
    """
    with transaction.atomic():
        locked_root()
        row = AdmissionSettings.objects.select_for_update().get(pk=settings().pk)
        precondition(row)
        before = {name: getattr(row, name) for name in values if getattr(row, name) != values[name]}
        if before:
            for name in before:
                setattr(row, name, values[name])
            row.save(update_fields=list(before))
            after = {name: values[name] for name in before}
            audit.record("quota.settings", actor=actor, target=("admission", "1"), before=before, after=after)
            task_triggers.trigger_after_commit(task_triggers.ADMIT)


def _row(node_id: str) -> QuotaNode:
    return QuotaNode.objects.select_related("team").get(pk=node_id)


def _store(before: Tree, after: Tree, actor: User) -> None:
    touched = {each for each in {*before, *after} if before.get(each) != after.get(each)}
    if not touched:
        return
    # In the global lock order of nodes (limits.py uses it too).
    rows = {
        row.id: row for row in QuotaNode.objects.select_for_update(no_key=True).filter(id__in=touched).order_by("id")
    }
    for node_id in sorted(touched - before.keys(), key=lambda each: path_of(after, each).count("/")):
        rows[node_id] = QuotaNode.objects.create(id=node_id, name=node_id, parent_id=after[node_id].parent)
    for node_id in touched & after.keys():
        # Names last: two nodes may swap names.
        node = after[node_id]
        _write(rows[node_id], replace(node, name=node_id) if node.parent else node, before.get(node_id))
    for node_id in sorted(touched - after.keys(), key=lambda each: -path_of(before, each).count("/")):
        rows[node_id].delete()
    for node_id in touched & after.keys():
        QuotaNode.objects.filter(pk=node_id).update(name=after[node_id].name)
    _note_nominals(before, after)
    version = QuotaNode.objects.get(parent=None)
    version.version += 1
    version.save(update_fields=["version"])
    for node_id in sorted(touched):
        _audit(before, after, node_id, actor)
    task_triggers.trigger_after_commit(task_triggers.ADMIT)


def _write(row: QuotaNode, node: Node, was: Node | None) -> None:
    row.name, row.parent_id, row.weight = node.name, node.parent, node.weight
    for name in LIMITS:
        setattr(row, name, node.limits.get(name))
    row.version += 0 if row.parent_id is None else 1
    row.save()
    old = was.grants if was else {}
    QuotaGrant.objects.filter(node=row, accelerator__in=[name for name in old if name not in node.grants]).delete()
    for accelerator, grant in node.grants.items():
        if old.get(accelerator) != grant:
            QuotaGrant.objects.update_or_create(node=row, accelerator=accelerator, defaults=grant.model_dump())


def _note_nominals(before: Tree, after: Tree) -> None:
    had, has, now = nominals(before), nominals(after), timezone.now()
    NominalChange.objects.bulk_create(
        NominalChange(
            node_id=node_id, accelerator=accelerator, time=now,
            before=had.get((node_id, accelerator), 0), after=has.get((node_id, accelerator), 0),
        )
        for node_id, accelerator in sorted({*had, *has})
        if node_id in after and had.get((node_id, accelerator), 0) != has.get((node_id, accelerator), 0)
    )  # fmt: skip


def _audit(before: Tree, after: Tree, node_id: str, actor: User) -> None:
    """Record the differences of a node, always with its path."""
    old, new = before.get(node_id), after.get(node_id)
    was = {"path": path_of(before, node_id), **changes.values_of(old)} if old else {}
    is_ = {"path": path_of(after, node_id), **changes.values_of(new)} if new else {}
    differ = {name for name in {*was, *is_} if was.get(name) != is_.get(name)}
    action = "quota.change" if old and new else "quota.create" if new else "quota.delete"
    node = new or old
    assert node is not None
    audit.record(
        action,
        actor=actor,
        target=("quota_node", node_id),
        team_id=node.team_id,
        before={"path": was["path"], **{name: was.get(name) for name in differ}} if old else None,
        after={"path": is_["path"], **{name: is_.get(name) for name in differ}} if new else None,
    )
