"""Which CPUs belong to which GPU, by planted trees of sysfs."""

from pathlib import Path

import pytest

from trainer.training.numa import bind_to_gpu, cpus_of_gpus, parse_cpu_list

GPUS = ["0000:1b:00.0", "0000:43:00.0", "0000:9b:00.0", "0000:c3:00.0"]


def plant(sysfs: Path, numa_nodes: list[int], cpu_lists: list[str], threads: int = 1) -> Path:
    """Make a machine: the NUMA node of each GPU, the CPUs of each node; CPU n and CPU n + 8 share a core if `threads`
    is 2."""
    for address, node in zip(GPUS, numa_nodes, strict=False):
        file = sysfs / "bus/pci/devices" / address / "numa_node"
        file.parent.mkdir(parents=True)
        file.write_text(f"{node}\n")
    for node, cpus in enumerate(cpu_lists):
        file = sysfs / f"devices/system/node/node{node}/cpulist"
        file.parent.mkdir(parents=True)
        file.write_text(f"{cpus}\n")
        for cpu in parse_cpu_list(cpus):
            file = sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            file.parent.mkdir(parents=True)
            file.write_text(f"{cpu % 8},{cpu % 8 + 8}\n" if threads == 2 else f"{cpu}\n")
    return sysfs


def test_each_gpu_has_its_part_of_its_nodes_cpus(tmp_path: Path) -> None:
    sysfs = plant(tmp_path, [0, 0, 1, 1], ["0-3", "4-7"])
    assert cpus_of_gpus(sysfs, GPUS, set(range(8))) == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]


def test_gpus_in_another_order_than_their_nodes_still_get_theirs(tmp_path: Path) -> None:
    sysfs = plant(tmp_path, [1, 0, 1, 0], ["0-3", "4-7"])
    assert cpus_of_gpus(sysfs, GPUS, set(range(8))) == [{4, 5}, {0, 1}, {6, 7}, {2, 3}]


def test_both_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    sysfs = plant(tmp_path, [0, 0, 1, 1], ["0-3,8-11", "4-7,12-15"], threads=2)
    assert cpus_of_gpus(sysfs, GPUS, set(range(16))) == [{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}]


def test_cpus_that_the_process_may_not_use_are_not_taken(tmp_path: Path) -> None:
    sysfs = plant(tmp_path, [0, 0], ["0-7"])
    assert cpus_of_gpus(sysfs, GPUS[:2], {2, 3, 4, 9}) == [{2}, {3, 4}]


@pytest.mark.parametrize("numa_nodes", [[-1, 0], [0], [0, 1]])
def test_nothing_is_bound_where_a_gpu_has_no_node_or_too_few_cpus(tmp_path: Path, numa_nodes: list[int]) -> None:
    sysfs = plant(tmp_path, numa_nodes, ["0-3", "4-7"])
    assert cpus_of_gpus(sysfs, GPUS[:2], set(range(4))) is None


def test_a_machine_without_numa_nodes_binds_nothing(tmp_path: Path) -> None:
    assert cpus_of_gpus(tmp_path, GPUS, set(range(8))) is None


def test_parse_cpu_list() -> None:
    assert parse_cpu_list("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert parse_cpu_list("") == set()


def test_without_gpus_the_cpus_of_a_process_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert bind_to_gpu(0, 1) is False
