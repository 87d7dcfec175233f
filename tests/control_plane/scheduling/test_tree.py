"""Arithmetic of hierarchical quotas, on trees small enough to verify by hand."""

import pytest

from athanor.quotas.capacity import NO_LIMIT, CapacityGrant, CapacityNode, CapacityTree, Constraint, Usage

GPU = "h100"


def node(name: str, parent: str | None = "organisation", **fields: object) -> CapacityNode:
    grant = {key: fields.pop(key) for key in ("nominal", "borrow_limit", "lend_limit") if key in fields}
    return CapacityNode(name, name, parent, grants={GPU: CapacityGrant(**grant)} if grant else {}, **fields)  # type: ignore[arg-type]


class Organisation:
    """A tree whose nodes are addressed by name."""

    def __init__(self, *nodes: CapacityNode) -> None:
        self.tree = CapacityTree([CapacityNode("organisation", "organisation"), *nodes])
        self.usage = Usage(self.tree)

    def use(self, name: str, slots: int) -> None:
        self.usage.add(self.tree.index[name], GPU, slots)

    def release(self, name: str, slots: int) -> None:
        self.usage.remove(self.tree.index[name], GPU, slots)

    def available(self, name: str) -> int:
        return self.usage.available(self.tree.index[name], GPU)

    def first_constraint(self, name: str, slots: int) -> Constraint | None:
        return self.usage.first_constraint(self.tree.index[name], GPU, slots)

    def used(self, name: str) -> int:
        return self.usage.quota_slots[GPU][self.tree.index[name]]


def test_a_team_borrows_what_others_leave_idle_up_to_its_limit() -> None:
    org = Organisation(node("blue", nominal=10, borrow_limit=5), node("red", nominal=10))
    assert org.available("blue") == 15
    assert org.available("red") == 20
    org.use("red", 8)
    assert org.available("blue") == 12
    org.use("blue", 12)
    assert (org.available("blue"), org.available("red")) == (0, 0)
    assert org.usage.borrowed(org.tree.index["blue"], GPU) == 2
    lent = org.usage.lent(GPU)
    assert (lent[org.tree.index["red"]], lent[org.tree.index["blue"]]) == (2, 0)


def test_a_team_with_a_borrow_limit_of_nothing_keeps_to_its_own() -> None:
    org = Organisation(node("blue", nominal=4, borrow_limit=0), node("red", nominal=4))
    assert org.available("blue") == 4
    assert org.first_constraint("blue", 5) == Constraint("quota", org.tree.index["blue"])


def test_what_may_not_be_lent_stays_free_for_its_owner() -> None:
    org = Organisation(node("blue", nominal=4), node("red", nominal=10, lend_limit=3))
    assert org.available("blue") == 7
    org.use("blue", 7)
    assert org.available("red") == 7
    org.use("red", 7)
    assert org.available("red") == 0
    assert org.usage.lent(GPU)[org.tree.index["red"]] == 3


def test_own_slots_that_are_not_lent_are_used_first_and_unseen_above() -> None:
    org = Organisation(node("blue", nominal=4), node("red", nominal=10, lend_limit=3))
    org.use("red", 7)
    assert org.used("organisation") == 0
    assert org.available("blue") == 7
    org.use("red", 1)
    assert org.used("organisation") == 1
    org.release("red", 5)
    assert (org.used("red"), org.used("organisation")) == (3, 0)


def test_a_group_shares_its_own_grant_among_its_teams_and_lends_what_they_leave() -> None:
    org = Organisation(
        node("research", nominal=8, lend_limit=6, borrow_limit=2),
        node("vision", "research", nominal=2),
        node("speech", "research"),
        node("product", nominal=4, borrow_limit=None),
    )
    research = org.tree.index["research"]
    assert org.tree.quotas[GPU].subtree[research] == 10
    assert org.tree.quotas[GPU].local[research] == 4
    assert org.available("speech") == 12
    assert org.available("product") == 10
    org.use("speech", 12)
    assert (org.available("vision"), org.available("product")) == (0, 2)
    assert org.usage.borrowed(research, GPU) == 2


def test_a_team_without_a_grant_may_borrow_and_has_nothing_of_its_own() -> None:
    org = Organisation(node("blue", nominal=4), node("red"))
    assert org.available("red") == 4
    org.use("red", 1)
    assert org.usage.borrowed(org.tree.index["red"], GPU) == 1


def test_an_accelerator_that_nobody_grants_is_not_governed() -> None:
    org = Organisation(node("blue"))
    assert org.available("blue") == NO_LIMIT
    assert org.first_constraint("blue", 10**9) is None


def test_after_an_edit_that_lowered_it_nothing_is_available_and_what_is_kept_still_is() -> None:
    org = Organisation(node("blue", nominal=1), node("red", nominal=4, lend_limit=0), node("green", nominal=1))
    org.use("blue", 9)
    assert (org.available("blue"), org.available("green")) == (0, 0)
    assert org.available("red") == 4, "what is never lent is not lost to who uses too much"
    org.use("red", 4)
    assert org.available("red") == 0
    org.release("blue", 9)
    assert org.available("blue") == 2


def test_limits_hold_for_the_whole_subtree() -> None:
    org = Organisation(
        node("research", max_running_jobs=2), node("vision", "research", max_slots=3), node("speech", "research")
    )
    assert org.first_constraint("vision", 4) == Constraint("slots", org.tree.index["vision"])
    org.use("vision", 1)
    org.use("speech", 8)
    assert org.first_constraint("speech", 1) == Constraint("jobs", org.tree.index["research"])
    assert org.first_constraint("vision", 3) == Constraint("slots", org.tree.index["vision"])


def test_within_its_own_quota_is_asked_of_each_level_below_a_node() -> None:
    org = Organisation(node("research"), node("vision", "research", nominal=4), node("speech", "research"),
                       node("product", nominal=4))  # fmt: skip
    org.use("speech", 2)
    vision, research = org.tree.index["vision"], org.tree.index["research"]
    assert org.usage.is_within_nominal(vision, GPU, 4, below=research)
    assert not org.usage.is_within_nominal(vision, GPU, 4)
    assert org.usage.is_within_nominal(vision, GPU, 2)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([CapacityNode("a", "a", "b"), CapacityNode("b", "b", "a")], "above itself"),
        ([CapacityNode("a", "a", "gone")], "'gone' is not in the tree"),
    ],
)
def test_what_is_no_tree_is_refused(nodes: list[CapacityNode], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CapacityTree(nodes)
