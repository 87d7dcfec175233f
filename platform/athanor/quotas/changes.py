"""From the present tree and what is wished to the tree that is wanted, or to every mistake in the wish. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from athanor.core import ids
from athanor.core.errors import FieldProblem, Invalid
from athanor.quotas.tree import (
    DEEPEST,
    LIMITS,
    ROOT,
    Grant,
    GroupDocument,
    Limits,
    Node,
    NodeChange,
    TeamDocument,
    Tree,
    TreeDocument,
    children_of,
    nominals,
    path_of,
    paths,
    root_of,
    way_up,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass
class _Wish:
    """The tree while it is changed. `told`: by node, where in what was sent it was spoken of last."""

    tree: Tree
    problems: list[FieldProblem] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)

    def refuse(self, pointer: str, code: str, detail: str) -> None:
        self.problems.append(FieldProblem(pointer, code, detail))

    def result(self) -> Tree:
        if not self.problems:
            _check(self)
        if self.problems:
            raise Invalid(
                "invalid_quotas",
                self.problems[0].detail,
                remedy="mend the fields listed in errors; nothing was changed",
                problems=tuple(self.problems),
            )
        return self.tree


def changed(tree: Tree, changes: Sequence[NodeChange]) -> Tree:
    """With all the changes. Raises Invalid naming every one that cannot be."""
    wish = _Wish(dict(tree))
    for number, change in enumerate(changes):
        _apply(wish, change, f"/changes/{number}")
    return wish.result()


def declared(tree: Tree, document: TreeDocument) -> Tree:
    """As the document says. Groups are known by their path, teams by their name wherever they are."""
    wish = _Wish(dict(tree))
    top = root_of(tree)
    teams = {node.team: node for node in tree.values() if node.team}
    wanted = _Declaring(wish, teams, {top.id})
    wanted.group(top, document.organisation, f"/{ROOT}")
    below = children_of(wish.tree)
    for node in [node for node in tree.values() if not node.team and node.id not in wanted.kept]:
        left = [child.name for child in below[node.id] if child.id in wanted.kept or child.team]
        if left:
            detail = f"group {path_of(tree, node.id)} is left out, but {', '.join(left)} would stay in it"
            wish.refuse(f"/{ROOT}", "group_not_empty", f"{detail}; name the group, or say where else they go")
        del wish.tree[node.id]
    return wish.result()


@dataclass
class _Declaring:
    wish: _Wish
    teams: dict[str, Node]
    kept: set[str]

    def group(self, node: Node, document: GroupDocument, pointer: str) -> None:
        wish = self.wish
        wish.told[node.id] = pointer
        wish.tree[node.id] = _as_said(node, document)
        known = {child.name: child for child in wish.tree.values() if child.parent == node.id and not child.team}
        for name, inner in document.groups.items():
            child = known.get(name) or Node(ids.quota_node_id(), name, node.id)
            self.kept.add(child.id)
            self.group(child, inner, f"{pointer}/groups/{name}")
        for name, said in document.teams.items():
            place = f"{pointer}/teams/{name}"
            leaf = self.teams.get(name)
            if leaf is None:
                wish.refuse(place, "unknown_team", _no_team(name, self.teams))
            elif leaf.id in self.kept:
                wish.refuse(place, "team_twice", f"team {name} is in the document twice; leave one")
            else:
                self.kept.add(leaf.id)
                wish.told[leaf.id] = place
                wish.tree[leaf.id] = replace(_as_said(leaf, said), parent=node.id)


def _as_said(node: Node, document: TeamDocument) -> Node:
    limits = {name: value for name in LIMITS if (value := getattr(document, name)) is not None}
    return replace(node, weight=document.weight, limits=limits, grants=dict(document.grants))


def _no_team(name: str, teams: Iterable[str]) -> str:
    nearest = get_close_matches(name, list(teams), n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else "make the team first"
    return f"there is no team {name}; {hint}"


def _apply(wish: _Wish, change: NodeChange, pointer: str) -> None:
    if change.action == "create":
        _create(wish, change, pointer)
        return
    node = _find(wish, change.node, f"{pointer}/node")
    if node is None:
        return
    wish.told[node.id] = pointer
    if change.action == "delete":
        _delete(wish, node, pointer)
        return
    wish.tree[node.id] = _with_values(node, change)
    if change.name is not None and change.name != node.name:
        if node.team or node.parent is None:
            what = f"the leaf of team {node.team}" if node.team else "the top of the tree"
            wish.refuse(f"{pointer}/name", "name_is_fixed", f"{what} keeps its name; leave name out")
        wish.tree[node.id] = replace(wish.tree[node.id], name=change.name)
    if change.parent is not None:
        _move(wish, wish.tree[node.id], change.parent, f"{pointer}/parent")


def _create(wish: _Wish, change: NodeChange, pointer: str) -> None:
    """`node` is the path that the group is to have; or its name, with `parent`."""
    above, _, name = change.node.rpartition("/")
    parent = _find(wish, change.parent or above or ROOT, f"{pointer}/{'parent' if change.parent else 'node'}")
    if parent is None:
        return
    if change.name is not None and change.name != name:
        wish.refuse(f"{pointer}/name", "two_names", f"node says {name}, name says {change.name}; leave name out")
    if parent.team:
        wish.refuse(f"{pointer}/node", "below_a_team", f"{parent.name} is a team; groups are made in groups")
        return
    made = _with_values(Node(ids.quota_node_id(), name, parent.id), change)
    wish.told[made.id] = pointer
    if not NAME.fullmatch(name):
        detail = f"{name!r} is not of letters, digits, dots, dashes and underscores (1 to 100); choose another name"
        wish.refuse(f"{pointer}/node", "invalid_name", detail)
    wish.tree[made.id] = made


def _delete(wish: _Wish, node: Node, pointer: str) -> None:
    if node.parent is None:
        wish.refuse(f"{pointer}/action", "top_of_the_tree", "the organisation cannot be deleted")
    elif node.team:
        detail = f"{node.name} is the leaf of team {node.team} and lives as long as the team; move it instead"
        wish.refuse(f"{pointer}/action", "leaf_of_a_team", detail)
    elif below := [child.name for child in wish.tree.values() if child.parent == node.id]:
        detail = f"group {node.name} is not empty: {', '.join(sorted(below))}; move what is in it first"
        wish.refuse(f"{pointer}/action", "group_not_empty", detail)
    else:
        del wish.tree[node.id]


def _move(wish: _Wish, node: Node, parent: str, pointer: str) -> None:
    target = _find(wish, parent, pointer)
    if target is None or target.id == node.parent:
        return
    if node.parent is None:
        wish.refuse(pointer, "top_of_the_tree", "the organisation is the top and cannot be moved")
    elif target.team:
        wish.refuse(pointer, "below_a_team", f"{target.name} is a team; move it to a group")
    elif any(above.id == node.id for above in way_up(wish.tree, target.id)):
        detail = f"{target.name} is {'itself' if target.id == node.id else f'below {node.name}'}; move it elsewhere"
        wish.refuse(pointer, "cycle", f"{node.name} cannot be moved to {path_of(wish.tree, target.id)}: {detail}")
    else:
        wish.tree[node.id] = replace(node, parent=target.id)


def _find(wish: _Wish, reference: str, pointer: str) -> Node | None:
    """By id, path, or the name of its team."""
    if reference in wish.tree:
        return wish.tree[reference]
    known = paths(wish.tree)
    found = known.get(reference.strip("/").removeprefix(f"{ROOT}/"))
    if found:
        return wish.tree[found]
    for node in wish.tree.values():
        if node.team == reference:
            return node
    nearest = get_close_matches(reference, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there is {', '.join(sorted(known)[:20])}"
    wish.refuse(pointer, "unknown_node", f"the tree has no node {reference!r}; {hint}")
    return None


def _with_values(node: Node, change: NodeChange) -> Node:
    said = change.model_fields_set & Limits.model_fields.keys()
    limits = {name: value for name, value in node.limits.items() if name not in said}
    limits |= {name: value for name in LIMITS if name in said and (value := getattr(change, name)) is not None}
    grants: dict[str, Grant] = {name: grant for name, grant in node.grants.items() if name not in change.grants}
    grants |= {name: grant for name, grant in change.grants.items() if grant is not None}
    return replace(node, weight=change.weight if "weight" in said else node.weight, limits=limits, grants=grants)


def _check(wish: _Wish) -> None:
    """What must hold of the whole."""
    tree, own = wish.tree, nominals(wish.tree)
    for node_id, pointer in wish.told.items():
        if node_id in tree:
            _check_node(wish, tree[node_id], pointer, own)
    twice = Counter((node.parent, node.name) for node in tree.values())
    for (parent, name), count in twice.items():
        if count > 1 and parent is not None:
            ids_ = [node.id for node in tree.values() if (node.parent, node.name) == (parent, name)]
            pointer = next((wish.told[each] for each in ids_ if each in wish.told), "/")
            detail = f"two nodes in {tree[parent].name} would be called {name}; choose another name"
            wish.refuse(pointer, "name_taken", detail)


def _check_node(wish: _Wish, node: Node, pointer: str, own: Mapping[tuple[str, str], int]) -> None:
    is_top = node.parent is None
    if sum(1 for _ in way_up(wish.tree, node.id)) > DEEPEST:
        wish.refuse(pointer, "too_deep", f"{node.name} would be more than {DEEPEST} levels deep; flatten the tree")
    if not is_top and not node.team and node.name == ROOT:
        wish.refuse(pointer, "name_taken", f"only the top of the tree is called {ROOT}; choose another name")
    for accelerator, grant in node.grants.items():
        place = f"{pointer}/grants/{accelerator}"
        if is_top and (grant.borrow_limit is not None or grant.lend_limit is not None):
            which = "borrow_limit" if grant.borrow_limit is not None else "lend_limit"
            detail = f"the organisation has nobody to borrow from or lend to; leave {which} of {accelerator} out"
            wish.refuse(f"{place}/{which}", "top_of_the_tree", detail)
        elif grant.lend_limit is not None:
            has = own[node.id, accelerator]
            if grant.lend_limit > has:
                detail = f"{node.name} has {has} of {accelerator} and cannot lend {grant.lend_limit}"
                wish.refuse(f"{place}/lend_limit", "lends_too_much", f"{detail}; lend {has} at most")


def differences(before: Tree, after: Tree) -> list[str]:
    """A line for each thing that differs, for people."""
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
                lines.append(f"  {path_of(after, node_id)}: {name} {_said(was.get(name))} -> {_said(is_.get(name))}")
    return lines


DEFAULTS = {"weight": "1"}


def values_of(node: Node) -> dict[str, int | str]:
    """What can be set of a node, flat: what is not set is not there."""
    values: dict[str, int | str] = {"weight": f"{node.weight:g}", **node.limits}
    for accelerator, grant in node.grants.items():
        for part, value in grant.model_dump().items():
            if value is not None:
                values[f"{accelerator}.{part}"] = value
    return values


def _said(value: int | str | None) -> str:
    return "none" if value is None else str(value)
