"""Apply changes or a document to the quota tree, or report every problem in them. Pure."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from athanor.core import ids
from athanor.core.errors import FieldProblem, Invalid
from athanor.quotas.tree import (
    LIMITS,
    MAX_DEPTH,
    ROOT,
    Grant,
    GroupDocument,
    Limits,
    Node,
    NodeChange,
    TeamDocument,
    Tree,
    TreeDocument,
    ancestors_of,
    children_of,
    nominals,
    path_of,
    paths,
    root_of,
)
from trainer.contract.units import duration_text, size_text

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass
class _Draft:
    """A tree while it is changed. `pointers`: by node, the JSON pointer to its last change in the request.

    `accelerators`: those that grants may name; None allows all.
    """

    tree: Tree
    accelerators: frozenset[str] | None = None
    problems: list[FieldProblem] = field(default_factory=list)
    pointers: dict[str, str] = field(default_factory=dict)

    def add_problem(self, pointer: str, code: str, detail: str) -> None:
        self.problems.append(FieldProblem(pointer, code, detail))

    def result(self) -> Tree:
        if not self.problems:
            _check(self)
        if self.problems:
            raise Invalid(
                "invalid_quotas",
                self.problems[0].detail,
                remedy="fix the fields listed in errors; nothing was changed",
                problems=tuple(self.problems),
            )
        return self.tree


def changed(tree: Tree, changes: Sequence[NodeChange], accelerators: Iterable[str] | None = None) -> Tree:
    """Return the tree with all changes applied. Raises Invalid with every problem.

    `accelerators`: those that exist; new grants must name one of them. None allows all.
    """
    draft = _Draft(dict(tree), _allowed(tree, accelerators))
    for number, change in enumerate(changes):
        _apply(draft, change, f"/changes/{number}")
    return draft.result()


def declared(tree: Tree, document: TreeDocument, accelerators: Iterable[str] | None = None) -> Tree:
    """Return the tree that the document describes. Groups are matched by path, teams by name.

    `accelerators` as in `changed`.
    """
    draft = _Draft(dict(tree), _allowed(tree, accelerators))
    top = root_of(tree)
    teams = {node.team: node for node in tree.values() if node.team}
    applier = _DocumentApplier(draft, teams, {top.id})
    applier.group(top, document.organisation, f"/{ROOT}")
    below = children_of(draft.tree)
    for node in [node for node in tree.values() if not node.team and node.id not in applier.named]:
        left = [child.name for child in below[node.id] if child.id in applier.named or child.team]
        if left:
            detail = f"group {path_of(tree, node.id)} is missing, but {', '.join(left)} would stay in it"
            draft.add_problem(f"/{ROOT}", "group_not_empty", f"{detail}; add the group, or give them another place")
        del draft.tree[node.id]
    return draft.result()


def _allowed(tree: Tree, accelerators: Iterable[str] | None) -> frozenset[str] | None:
    """Return what grants may name: accelerators that exist, and those that the tree names already."""
    if accelerators is None:
        return None
    return frozenset(accelerators).union(*(node.grants for node in tree.values()))


def unknown_accelerator(name: str, known: Collection[str]) -> str:
    """Return what to say of an accelerator that no pool has."""
    nearest = get_close_matches(name, list(known), n=1)
    choices = f"name one of {', '.join(sorted(known))}, or" if known else "first"
    hint = f"did you mean {nearest[0]}?" if nearest else f"{choices} register a cluster with a pool of it"
    return f"no pool has the accelerator {name!r}; {hint}"


@dataclass
class _DocumentApplier:
    draft: _Draft
    teams: dict[str, Node]
    named: set[str]

    def group(self, node: Node, document: GroupDocument, pointer: str) -> None:
        draft = self.draft
        draft.pointers[node.id] = pointer
        draft.tree[node.id] = _with_document(node, document)
        known = {child.name: child for child in draft.tree.values() if child.parent == node.id and not child.team}
        for name, inner in document.groups.items():
            child = known.get(name) or Node(ids.quota_node_id(), name, node.id)
            self.named.add(child.id)
            self.group(child, inner, f"{pointer}/groups/{name}")
        for name, given in document.teams.items():
            place = f"{pointer}/teams/{name}"
            leaf = self.teams.get(name)
            if leaf is None:
                draft.add_problem(place, "unknown_team", _no_team(name, self.teams))
            elif leaf.id in self.named:
                draft.add_problem(place, "team_twice", f"team {name} is in the document twice; remove one")
            else:
                self.named.add(leaf.id)
                draft.pointers[leaf.id] = place
                draft.tree[leaf.id] = replace(_with_document(leaf, given), parent=node.id)


def _with_document(node: Node, document: TeamDocument) -> Node:
    limits = {name: value for name in LIMITS if (value := getattr(document, name)) is not None}
    return replace(node, weight=document.weight, limits=limits, grants=dict(document.grants))


def _no_team(name: str, teams: Iterable[str]) -> str:
    nearest = get_close_matches(name, list(teams), n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else "create the team first"
    return f"there is no team {name}; {hint}"


def _apply(draft: _Draft, change: NodeChange, pointer: str) -> None:
    if change.action == "create":
        _create(draft, change, pointer)
        return
    node = _find(draft, change.node, f"{pointer}/node")
    if node is None:
        return
    draft.pointers[node.id] = pointer
    if change.action == "delete":
        _delete(draft, node, pointer)
        return
    draft.tree[node.id] = _with_values(node, change)
    if change.name is not None and change.name != node.name:
        if node.team or node.parent is None:
            what = f"the leaf of team {node.team}" if node.team else "the top of the tree"
            draft.add_problem(f"{pointer}/name", "name_is_fixed", f"{what} has a fixed name; omit name")
        draft.tree[node.id] = replace(draft.tree[node.id], name=change.name)
    if change.parent is not None:
        _move(draft, draft.tree[node.id], change.parent, f"{pointer}/parent")


def _create(draft: _Draft, change: NodeChange, pointer: str) -> None:
    """Create a group. `node`: its path, or its name if `parent` is given."""
    above, _, name = change.node.rpartition("/")
    parent = _find(draft, change.parent or above or ROOT, f"{pointer}/{'parent' if change.parent else 'node'}")
    if parent is None:
        return
    if change.name is not None and change.name != name:
        draft.add_problem(f"{pointer}/name", "two_names", f"node has {name}, name has {change.name}; omit name")
    if parent.team:
        draft.add_problem(f"{pointer}/node", "below_a_team", f"{parent.name} is a team; create groups in groups")
        return
    made = _with_values(Node(ids.quota_node_id(), name, parent.id), change)
    draft.pointers[made.id] = pointer
    if not NAME.fullmatch(name):
        detail = f"{name!r} must have 1 to 100 letters, digits, dots, dashes and underscores; choose another name"
        draft.add_problem(f"{pointer}/node", "invalid_name", detail)
    draft.tree[made.id] = made


def _delete(draft: _Draft, node: Node, pointer: str) -> None:
    if node.parent is None:
        draft.add_problem(f"{pointer}/action", "top_of_the_tree", "the organisation cannot be deleted")
    elif node.team:
        detail = f"{node.name} is the leaf of team {node.team} and is deleted with it; move it instead"
        draft.add_problem(f"{pointer}/action", "leaf_of_a_team", detail)
    elif below := [child.name for child in draft.tree.values() if child.parent == node.id]:
        detail = f"group {node.name} is not empty: {', '.join(sorted(below))}; move its children first"
        draft.add_problem(f"{pointer}/action", "group_not_empty", detail)
    else:
        del draft.tree[node.id]


def _move(draft: _Draft, node: Node, parent: str, pointer: str) -> None:
    target = _find(draft, parent, pointer)
    if target is None or target.id == node.parent:
        return
    if node.parent is None:
        draft.add_problem(pointer, "top_of_the_tree", "the organisation is the root and cannot be moved")
    elif target.team:
        draft.add_problem(pointer, "below_a_team", f"{target.name} is a team; move it to a group")
    elif any(above.id == node.id for above in ancestors_of(draft.tree, target.id)):
        detail = f"{target.name} is {'itself' if target.id == node.id else f'below {node.name}'}; move it elsewhere"
        place = path_of(draft.tree, target.id)
        draft.add_problem(pointer, "cycle", f"{node.name} cannot be moved to {place}: {detail}")
    else:
        draft.tree[node.id] = replace(node, parent=target.id)


def _find(draft: _Draft, reference: str, pointer: str) -> Node | None:
    """Return the node with this id, path or team name, or add a problem."""
    if reference in draft.tree:
        return draft.tree[reference]
    known = paths(draft.tree)
    found = known.get(reference.strip("/").removeprefix(f"{ROOT}/"))
    if found:
        return draft.tree[found]
    for node in draft.tree.values():
        if node.team == reference:
            return node
    nearest = get_close_matches(reference, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there is {', '.join(sorted(known)[:20])}"
    draft.add_problem(pointer, "unknown_node", f"the tree has no node {reference!r}; {hint}")
    return None


def _with_values(node: Node, change: NodeChange) -> Node:
    given = change.model_fields_set & Limits.model_fields.keys()
    limits = {name: value for name, value in node.limits.items() if name not in given}
    limits |= {name: value for name in LIMITS if name in given and (value := getattr(change, name)) is not None}
    grants: dict[str, Grant] = {name: grant for name, grant in node.grants.items() if name not in change.grants}
    grants |= {name: grant for name, grant in change.grants.items() if grant is not None}
    return replace(node, weight=change.weight if "weight" in given else node.weight, limits=limits, grants=grants)


def _check(draft: _Draft) -> None:
    """Check the rules that concern the whole tree."""
    tree, own = draft.tree, nominals(draft.tree)
    for node_id, pointer in draft.pointers.items():
        if node_id in tree:
            _check_node(draft, tree[node_id], pointer, own)
    twice = Counter((node.parent, node.name) for node in tree.values())
    for (parent, name), count in twice.items():
        if count > 1 and parent is not None:
            ids_ = [node.id for node in tree.values() if (node.parent, node.name) == (parent, name)]
            pointer = next((draft.pointers[each] for each in ids_ if each in draft.pointers), "/")
            detail = f"two nodes in {tree[parent].name} would have the name {name}; choose another name"
            draft.add_problem(pointer, "name_taken", detail)


def _check_node(draft: _Draft, node: Node, pointer: str, own: Mapping[tuple[str, str], int]) -> None:
    is_top = node.parent is None
    if sum(1 for _ in ancestors_of(draft.tree, node.id)) > MAX_DEPTH:
        draft.add_problem(pointer, "too_deep", f"{node.name} is below more than {MAX_DEPTH} levels; flatten the tree")
    if not is_top and not node.team and node.name == ROOT:
        draft.add_problem(pointer, "name_taken", f"only the root has the name {ROOT}; choose another name")
    warning, pause = node.limits.get("idle_warning_seconds"), node.limits.get("idle_pause_seconds")
    if warning is not None and pause is not None and warning >= pause:
        detail = f"{node.name} would warn of idle jobs after {warning} s and pause them after {pause} s; warn earlier"
        draft.add_problem(f"{pointer}/idle_warning_seconds", "warns_too_late", detail)
    for accelerator, grant in node.grants.items():
        place = f"{pointer}/grants/{accelerator}"
        if draft.accelerators is not None and accelerator not in draft.accelerators:
            draft.add_problem(place, "unknown_accelerator", unknown_accelerator(accelerator, draft.accelerators))
        if is_top and (grant.borrow_limit is not None or grant.lend_limit is not None):
            which = "borrow_limit" if grant.borrow_limit is not None else "lend_limit"
            detail = f"the organisation cannot borrow or lend; omit {which} of {accelerator}"
            draft.add_problem(f"{place}/{which}", "top_of_the_tree", detail)
        elif grant.lend_limit is not None:
            has = own[node.id, accelerator]
            if grant.lend_limit > has:
                detail = f"{node.name} has {has} of {accelerator} and cannot lend {grant.lend_limit}"
                draft.add_problem(f"{place}/lend_limit", "lends_too_much", f"{detail}; lend {has} at most")


def differences(before: Tree, after: Tree) -> list[str]:
    """Return one line per difference, for people."""
    lines = []
    for node_id in sorted({*before, *after}, key=lambda each: path_of(after if each in after else before, each)):
        old, new = before.get(node_id), after.get(node_id)
        if old is None:
            lines.append(f"+ {path_of(after, node_id)}")
        elif new is None:
            lines.append(f"- {path_of(before, node_id)}")
            continue
        elif (old.parent, old.name) != (new.parent, new.name):
            lines.append(f"  {path_of(before, node_id)} -> {path_of(after, node_id)}")
        assert new is not None
        was, is_ = (values_of(old) if old else {}), values_of(new)
        for name in sorted({*was, *is_}):
            if was.get(name) != is_.get(name) and not (old is None and is_.get(name) == DEFAULTS.get(name)):
                change = f"{_format(name, was.get(name))} -> {_format(name, is_.get(name))}"
                lines.append(f"  {path_of(after, node_id)}: {_label(name)} {change}")
    return lines


DEFAULTS = {"weight": "1"}
LABELS = {
    "max_running_jobs": "running jobs", "max_queued_jobs": "waiting jobs", "max_slots": "total slots",
    "max_slots_per_job": "slots per job", "max_run_seconds": "longest run", "max_storage_bytes": "stored data",
    "idle_warning_seconds": "idle warning after", "idle_pause_seconds": "idle pause after",
    "nominal": "own slots", "borrow_limit": "borrow limit", "lend_limit": "lend limit",
}  # fmt: skip
UNITS = {
    "max_run_seconds": duration_text, "max_storage_bytes": size_text, "idle_warning_seconds": duration_text,
    "idle_pause_seconds": duration_text,
}  # fmt: skip


def values_of(node: Node) -> dict[str, int | str]:
    """Return the settings of a node as a flat mapping, without unset ones."""
    values: dict[str, int | str] = {"weight": f"{node.weight:g}", **node.limits}
    for accelerator, grant in node.grants.items():
        for part, value in grant.model_dump().items():
            if value is not None:
                values[f"{accelerator}.{part}"] = value
    return values


def _label(name: str) -> str:
    """Return the label of a setting of `values_of`, as forms have it."""
    accelerator, _, part = name.rpartition(".")
    return f"{LABELS.get(part, part)} of {accelerator}" if accelerator else LABELS.get(name, name)


def _format(name: str, value: int | str | None) -> str:
    if value is None:
        return "no limit" if name in LIMITS else "none"
    return UNITS[name](int(value)) if name in UNITS else str(value)
