"""Environment of agents from a cluster's profile, and settings that are left to NCCL."""

from typing import Any

import pytest
from pydantic import ValidationError

from athanor.backends.profile import ClusterProfile


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ({"fabric": "ethernet"}, {"NCCL_IB_DISABLE": "1"}),
        ({"fabric": "efa"}, {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"}),
        ({"fabric": "infiniband", "hcas": "mlx5"}, {"NCCL_IB_HCA": "mlx5", "NCCL_IB_TIMEOUT": "22"}),
        (
            {"fabric": "roce", "roce_gid_index": 3, "roce_traffic_class": 106},
            {"NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "106", "NCCL_IB_TIMEOUT": "22"},
        ),
        ({"fabric": "roce"}, {"NCCL_IB_TIMEOUT": "22"}),
    ],
)
def test_each_fabric_gets_its_settings_on_several_nodes_with_accelerators(
    profile: dict[str, Any], expected: dict[str, str]
) -> None:
    assert ClusterProfile(**profile).variables("h100", 2) == expected
    assert ClusterProfile(**profile).variables("h100", 1) == {}
    assert ClusterProfile(**profile).variables("cpu", 2) == {}


def test_interfaces_are_for_both_libraries_of_which_one_takes_only_names() -> None:
    assert ClusterProfile(interfaces="^docker0,lo").variables("cpu", 2) == {"NCCL_SOCKET_IFNAME": "^docker0,lo"}
    assert ClusterProfile(interfaces="=eth0").variables("cpu", 2)["GLOO_SOCKET_IFNAME"] == "eth0"
    chosen = ClusterProfile(interfaces="eth0,eth1").variables("cpu", 2)
    assert (chosen["GLOO_SOCKET_IFNAME"], chosen["NCCL_SOCKET_IFNAME"]) == ("eth0,eth1", "eth0,eth1")


@pytest.mark.parametrize(("locality", "kept"), [("node_cache", True), ("shared_scratch", True), ("stream", False)])
def test_data_and_copies_of_checkpoints_lie_where_the_profile_says(locality: str, kept: bool) -> None:
    chosen = ClusterProfile(locality=locality, cache_directory="/scratch/athanor").variables("cpu", 1)
    there = {"ATHANOR_CACHE_DIR": "/scratch/athanor", "ATHANOR_CHECKPOINT_DIR": "/scratch/athanor/checkpoints"}
    assert chosen == (there if kept else {})


def test_what_an_administrator_sets_wins() -> None:
    profile = ClusterProfile(fabric="ethernet", environment={"NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "INFO"})
    assert profile.variables("h100", 2) == {"NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    ("profile", "field"),
    [
        ({"fabric": "token-ring"}, "fabric"),
        ({"interfaces": "eth0; rm -rf /"}, "interfaces"),
        ({"cache_directory": "relative"}, "cache_directory"),
        ({"environment": {"NOT A NAME": "1"}}, "environment"),
        ({"locality": "node_cache", "cach_directory": "/x"}, "cach_directory"),
    ],
)
def test_what_is_wrong_names_its_field(profile: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ClusterProfile(**profile)
    assert refused.value.errors()[0]["loc"][0] == field
