"""Changes of the quota tree: the resulting tree, or every mistake in the change. Pure."""

from typing import Any

import pytest

from athanor.core.errors import Invalid
from athanor.quotas import changes
from athanor.quotas.tree import Grant, Node, NodeChange, Tree, TreeDocument, document_of, path_of, paths

BLUE = Node("n_blue", "blue", "n_top", team="blue", team_id="t_blue", limits={"max_slots": 4})
RED = Node("n_red", "red", "n_lab", team="red", team_id="t_red", grants={"h100": Grant(nominal=4)})
TREE: Tree = {
    "n_top": Node("n_top", "organisation", None),
    "n_lab": Node("n_lab", "lab", "n_top", grants={"h100": Grant(nominal=8, lend_limit=2)}),
    "n_red": RED,
    "n_blue": BLUE,
}


def change(**fields: Any) -> NodeChange:
    return NodeChange.model_validate(fields)


def after(*wishes: dict[str, Any]) -> Tree:
    return changes.changed(TREE, [change(**wish) for wish in wishes])


def refused(*wishes: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(Invalid) as caught:
        after(*wishes)
    assert all(problem.detail for problem in caught.value.problems)
    return [(problem.pointer, problem.code) for problem in caught.value.problems]


def test_what_is_not_named_stays() -> None:
    tree = after({"node": "blue", "max_running_jobs": 3, "grants": {"cpu": {"nominal": 2}}})
    assert tree["n_blue"].limits == {"max_slots": 4, "max_running_jobs": 3}
    assert tree["n_blue"].grants == {"cpu": Grant(nominal=2)}
    assert {**tree, "n_blue": BLUE} == TREE


def test_null_takes_a_limit_and_a_grant_away() -> None:
    tree = after({"node": "blue", "max_slots": None}, {"node": "lab/red", "grants": {"h100": None}})
    assert (tree["n_blue"].limits, tree["n_red"].grants) == ({}, {})


def test_a_node_is_found_by_id_and_by_path() -> None:
    for name in ("n_red", "red", "lab/red", "/lab/red/", "organisation/lab/red"):
        assert after({"node": name, "weight": 2})["n_red"].weight == 2, name
    assert after({"node": "organisation", "max_slots": 9})["n_top"].limits == {"max_slots": 9}


def test_later_changes_see_earlier_ones() -> None:
    tree = after(
        {"action": "create", "node": "lab/vision", "weight": 2},
        {"node": "blue", "parent": "lab/vision"},
        {"node": "lab", "name": "research"},
    )
    assert path_of(tree, "n_blue") == "research/vision/blue"
    back = change(node="research/vision/blue", parent="organisation")
    emptied = changes.changed(tree, [back, change(action="delete", node="research/vision")])
    assert set(paths(emptied)) == {"organisation", "blue", "research", "research/red"}


def test_two_groups_may_take_each_others_names() -> None:
    tree = after({"action": "create", "node": "field"}, {"node": "lab", "name": "x"}, {"node": "field", "name": "lab"},
                 {"node": "x", "name": "field"})  # fmt: skip
    assert path_of(tree, "n_red") == "field/red"


@pytest.mark.parametrize(
    ("wish", "pointer", "code"),
    [
        ({"node": "labs"}, "/node", "unknown_node"),
        ({"node": "lab", "name": "blue"}, "", "name_taken"),
        ({"node": "lab", "parent": "lab"}, "/parent", "cycle"),
        ({"node": "organisation", "parent": "lab"}, "/parent", "top_of_the_tree"),
        ({"node": "lab", "parent": "blue"}, "/parent", "below_a_team"),
        ({"node": "blue", "name": "azure"}, "/name", "name_is_fixed"),
        ({"action": "delete", "node": "organisation"}, "/action", "top_of_the_tree"),
        ({"action": "delete", "node": "blue"}, "/action", "leaf_of_a_team"),
        ({"action": "delete", "node": "lab"}, "/action", "group_not_empty"),
        ({"action": "create", "node": "blue/x"}, "/node", "below_a_team"),
        ({"action": "create", "node": "nowhere/x"}, "/node", "unknown_node"),
        ({"action": "create", "node": "lab"}, "", "name_taken"),
        ({"action": "create", "node": "lab/new lab"}, "/node", "invalid_name"),
        ({"action": "create", "node": "lab/"}, "/node", "invalid_name"),
        ({"action": "create", "node": "lab/organisation"}, "", "name_taken"),
        ({"node": "blue", "grants": {"h": {"nominal": 2, "lend_limit": 3}}}, "/grants/h/lend_limit", "lends_too_much"),
        ({"node": "organisation", "grants": {"h": {"borrow_limit": 3}}}, "/grants/h/borrow_limit", "top_of_the_tree"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_where_it_is_said(wish: dict[str, Any], pointer: str, code: str) -> None:
    assert refused(wish) == [(f"/changes/0{pointer}", code)]


def test_every_mistake_is_told_at_once() -> None:
    assert refused({"node": "labs"}, {"node": "rde"}, {"node": "blue", "name": "x"}) == [
        ("/changes/0/node", "unknown_node"),
        ("/changes/1/node", "unknown_node"),
        ("/changes/2/name", "name_is_fixed"),
    ]


def test_a_group_cannot_be_moved_below_itself_over_any_distance() -> None:
    made = [{"action": "create", "node": "lab/a"}, {"action": "create", "node": "lab/a/b"}]
    assert refused(*made, {"node": "lab", "parent": "lab/a/b"}) == [("/changes/2/parent", "cycle")]


def test_the_tree_is_bounded_in_depth() -> None:
    deep = [{"action": "create", "node": "/".join("abcdefghijk"[: number + 1])} for number in range(11)]
    assert [code for _, code in refused(*deep)] == ["too_deep", "too_deep"]


def test_the_document_of_a_tree_changes_nothing() -> None:
    document = document_of(TREE)
    assert changes.declared(TREE, document) == TREE
    assert TreeDocument.model_validate(document.model_dump(mode="json", exclude_defaults=True)) == document


def declared(organisation: dict[str, Any]) -> Tree:
    return changes.declared(TREE, TreeDocument.model_validate({"organisation": organisation}))


def test_a_declared_tree_makes_moves_and_removes() -> None:
    vision = {"weight": 3, "teams": {"red": {"max_slots": 2}}}
    tree = declared({"groups": {"research": {"groups": {"vision": vision}}}})
    assert {path: tree[each].limits for path, each in paths(tree).items()} == {
        "organisation": {},
        "blue": {"max_slots": 4},  # left out: as it was
        "research": {},
        "research/vision": {},
        "research/vision/red": {"max_slots": 2},
    }
    assert tree["n_red"].grants == {}, "of what is named, what is left out has its default"


def test_a_group_that_is_left_out_must_be_empty() -> None:
    with pytest.raises(Invalid) as caught:
        declared({"teams": {"blue": {}}})
    assert "red would stay in it" in caught.value.problems[0].detail


def test_teams_of_a_document_exist_and_stand_once() -> None:
    with pytest.raises(Invalid) as caught:
        declared({"teams": {"reds": {}, "blue": {}}, "groups": {"lab": {"teams": {"red": {}, "blue": {}}}}})
    found = {(problem.pointer, problem.code) for problem in caught.value.problems}
    assert found == {("/organisation/teams/reds", "unknown_team"), ("/organisation/teams/blue", "team_twice")}


def test_differences_are_lines_for_people() -> None:
    tree = after(
        {"action": "create", "node": "field", "grants": {"h100": {"nominal": 2}}},
        {"node": "blue", "parent": "field", "max_slots": None, "weight": 2},
    )
    assert changes.differences(TREE, tree) == [
        "+ field",
        "  field: own slots of h100 none -> 2",
        "  blue -> field/blue",
        "  field/blue: total slots 4 -> no limit",
        "  field/blue: weight 1 -> 2",
    ]
    assert changes.differences(TREE, TREE) == []
