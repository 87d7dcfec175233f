"""The preflight on real ranks: gloo, CPUs, this machine's disk, a folder as the object store."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.distributed import HashStore

from tests.trainer.ranks import RankPool
from tests.trainer.runs import run_alone, tiny_training
from trainer.contract.encryption import Encryptor, new_keyset
from trainer.contract.preflight import Finding, PreflightReport, format_report
from trainer.contract.run import EndClass
from trainer.errors import TrainerError
from trainer.parallel.mesh import Mesh
from trainer.storage.folder import FolderStorage
from trainer.training import measurements, preflight
from trainer.training.preflight import Preflight, StoreTarget, check_fitness
from trainer.training.versions import compare_versions, versions_here


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(4) as started:
        yield started


def measure(mesh: Mesh, folder: Path, key: str, nodes: int, wrong_rank: int | None = None) -> PreflightReport:
    measurements.DEVICE_SECONDS, measurements.DISK_BYTES = 0.02, 2**20
    preflight.SIZES["cpu"], preflight.PAIR_BYTES["cpu"] = (64 * 2**10, 2**20), 2**18
    if mesh.rank == wrong_rank:
        preflight.matmul_rate = lambda device: (measurements.matmul_rate(device)[0], 17.0)
    names = [f"n{at}" for at in range(nodes)]
    target = StoreTarget(FolderStorage(folder / "store"), Encryptor(key), "jobs/1/preflight/1")
    try:
        return Preflight(mesh, names, folder, target).run()
    finally:
        preflight.matmul_rate = measurements.matmul_rate


def test_four_ranks_are_measured_and_all_get_the_same_report(ranks: RankPool, tmp_path: Path) -> None:
    reports = ranks.run(4, measure, tmp_path, new_keyset(), 2, 2)
    report = reports[0]
    assert all(other == report for other in reports)
    assert (report.ranks, report.nodes, report.device, report.skipped) == (4, 2, "cpu", [])
    rates = {each.name: each for each in report.measures}
    names = ("matrix products", "memory bandwidth", "disk of the work folder")
    assert [rates[name].count for name in names] == [4, 4, 2]
    assert rates["pairs, each way"].count == 1, "two nodes have one pair"
    assert all(each.lowest > 0 for each in report.measures)
    assert rates["object store, write"].lowest_at == "n0, rank 0"
    assert [(each.name, each.bytes) for each in report.collectives] == [
        (name, size) for size in (65536, 2**20) for name in ("all_reduce", "all_gather", "all_to_all")
    ]
    assert report.at_fault("broken") == {"n1"}, "of rank 2, which computes wrong"
    assert not list(tmp_path.glob("preflight-*"))
    text = "\n".join(format_report(report))
    assert "broken: a matrix product on n1, rank 2 has a wrong result" in text
    with pytest.raises(TrainerError, match="node n1 unfit: a matrix product on n1, rank 2"):
        check_fitness(report, "n1", has_spare=False)


def test_what_has_no_time_left_is_named(ranks: RankPool, tmp_path: Path) -> None:
    for report in ranks.run(2, measure_late, tmp_path):
        assert len(report.skipped) == 6 + 2, report.skipped
        assert report.collectives == []
        assert {each.name for each in report.measures} >= {"matrix products", "memory bandwidth"}


def measure_late(mesh: Mesh, folder: Path) -> PreflightReport:
    """As if half of the minute had passed before the network is measured."""
    preflight.highest = lambda value, mesh: 31.0
    try:
        return measure(mesh, folder, new_keyset(), 1)
    finally:
        preflight.highest = measurements.highest


def test_a_slow_node_ends_the_run_only_where_a_spare_takes_its_place() -> None:
    slow = Finding(severity="slow", nodes=["n1"], because="memory bandwidth of n1, rank 2 is low")
    report = PreflightReport(ranks=4, nodes=2, device="H100", seconds=1.0, findings=[slow])
    check_fitness(report, "n1", has_spare=False)
    check_fitness(report.model_copy(update={"device": "cpu"}), "n1", has_spare=True)
    check_fitness(report, "n0", has_spare=True)
    with pytest.raises(TrainerError) as caught:
        check_fitness(report, "n1", has_spare=True)
    assert caught.value.end_class is EndClass.NODE_UNFIT


def test_nodes_with_other_versions_are_refused_by_name() -> None:
    def compare(*torches: str) -> list[str]:
        store = HashStore()

        def of_node(rank: int) -> str:
            try:
                names = compare_versions(store, f"n{rank}", rank, len(torches), {"torch": torches[rank]})
            except TrainerError as error:
                return f"{error.end_class}: {error}"
            assert names == [f"n{at}" for at in range(len(torches))]
            return ""

        with ThreadPoolExecutor(len(torches)) as threads:
            return list(threads.map(of_node, range(len(torches))))

    assert compare("2.13", "2.13", "2.13") == ["", "", ""]
    errors = compare("2.13", "2.13", "2.11")
    assert errors[:2] == ["", ""]
    assert errors[2].startswith("node_unfit")
    assert "torch is 2.13 on n0, n1, 2.11 on n2; install the same on all nodes" in errors[2]
    assert {"Python", "torch", "trainer", "source of the trainer"} <= set(versions_here())
    assert all(each.startswith("versions_differ: ") for each in compare("2.13", "2.11")), "nothing says which is right"
    assert all("torch is" in each for each in compare("2.13", "2.13", "2.11", "2.11"))


def test_a_run_measures_before_its_first_step_and_trains_the_same(tmp_path: Path) -> None:
    run = run_alone(tmp_path / "with", tiny_training(steps=6), processes=2, preflight=True)
    assert run.end["end_class"] == "completed", run.end
    (event,) = run.events("preflight.completed")
    report = PreflightReport.model_validate(event["report"])
    assert report.ranks == 2
    assert {"matrix products", "object store, read"} <= {each.name for each in report.measures}
    assert event["result"] in ("ok", "slow")
    phases = [each["phase"] for each in run.events("phase.finished")]
    assert phases.index("preflight") < phases.index("model")
    plain = run_alone(tmp_path / "without", tiny_training(steps=6), processes=2)
    assert plain.series("train/loss") == run.series("train/loss")
