"""One rank of a run: joins the others, builds, trains, exports. Runs in a process that the fork server started."""

from pathlib import Path

from torch.distributed import PrefixStore, TCPStore

from trainer.contract.encryption import Encryptor
from trainer.contract.mesh_choice import resolve_parallelism
from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.contract.timeouts import EXPORT_TIMEOUT
from trainer.parallel.mesh import Mesh, join, leave
from trainer.reporting.reporter import Reporter
from trainer.resilience.assignment import Assignment
from trainer.resilience.compile_workers import start_compile_workers
from trainer.resilience.forking import FORK_PHASES
from trainer.resilience.store_server import STORE_TIMEOUT
from trainer.training.best import restore_best
from trainer.training.build import build
from trainer.training.cpu import reuse_freed_memory, share_cores
from trainer.training.device import (
    allow_tf32,
    has_bf16,
    prefer_fast_attention,
    record_collectives,
    smallest_device_bytes,
    tolerate_failed_compilation,
    use_deterministic_algorithms,
)
from trainer.training.evaluation_job import run_evaluation_job
from trainer.training.export import export_model
from trainer.training.export_job import run_export_job
from trainer.training.loop import train
from trainer.training.measurements import highest
from trainer.training.numa import bind_to_gpu
from trainer.training.preflight import Preflight, StoreTarget, check_fitness
from trainer.training.replay_job import run_replay_job
from trainer.training.versions import compare_versions, versions_here


def work(assignment: Assignment) -> EndClass:
    """Run this rank of the worker group. Return COMPLETED or STOPPED; all other ends are raised."""
    run = assignment.run
    if not bind_to_gpu(assignment.local_rank, run.layout.processes_per_node):
        share_cores(run.layout.processes_per_node)
    record_collectives(assignment.folder)
    if assignment.training.deterministic:
        use_deterministic_algorithms()
    reporter = Reporter(assignment)
    reporter.watch_each_other()
    for phase, (seconds, finished_at) in FORK_PHASES.items():
        if phase != "import" or assignment.restart_count == 0:  # paid once, by the fork server
            reporter.phase_finished(phase, seconds, finished_at)
    with reporter.phase("rendezvous", heartbeat_phase="rendezvous"):
        versions = versions_here() if assignment.local_rank == 0 else None
        mesh, nodes = _join(assignment, versions)
    if versions is not None:
        _report_software(versions, reporter)
    if run.preflight and highest(float(_preflight_marker(assignment).exists()), mesh) == 0:
        with reporter.phase("preflight", heartbeat_phase="rendezvous"):
            _run_preflight(assignment, mesh, nodes, reporter)
    if mesh.device.type == "cpu":
        reuse_freed_memory()
    allow_tf32(mesh.device)
    training = assignment.training.with_precision(has_bf16=has_bf16(mesh))
    training = training.with_compile(on_gpu=mesh.device.type == "cuda")
    if training.compile and assignment.training.compile == "auto":
        tolerate_failed_compilation()
    if training.compile and mesh.device.type == "cuda":
        start_compile_workers()
    vocab_size, device_bytes = training.tokenizer.vocab_size, smallest_device_bytes(mesh)
    resolved = resolve_parallelism(training, vocab_size, run.layout, device_bytes, run.evaluation)
    assignment = assignment.with_training(resolved)
    try:
        with prefer_fast_attention(mesh.device):
            end_class = _train_and_export(assignment, mesh, reporter)
    finally:
        reporter.enter_phase("done")
        reporter.close()
    reporter.report_exit(EXIT_STATUS[end_class])
    return end_class


def _report_software(versions: dict[str, str], reporter: Reporter) -> None:
    reporter.event(
        "software.found",
        trainer=versions["trainer"],
        trainer_sha256=versions["source of the trainer"],
        python=versions["Python"],
        torch=versions["torch"],
        cuda=versions.get("CUDA", ""),
        nccl=versions.get("NCCL", ""),
        driver_branch=versions.get("driver branch", ""),
    )


def _join(assignment: Assignment, versions: dict[str, str] | None) -> tuple[Mesh, list[str]]:
    """Join the other ranks. Return the mesh, and the names of the nodes by their ranks. `versions`: of this node, on
    its first rank."""
    store = TCPStore(assignment.store.host, assignment.store.port, is_master=False, timeout=STORE_TIMEOUT)
    layout, prefix = assignment.run.layout, f"generation{assignment.restart_count}/"
    nodes = [assignment.node or "node 0"]
    if layout.nodes > 1:
        of_versions = PrefixStore(f"{prefix}versions/", store)
        nodes = compare_versions(of_versions, assignment.node, assignment.node_rank, layout.nodes, versions)
    mesh = join(
        assignment.rank,
        layout.world_size,
        assignment.local_rank,
        PrefixStore(prefix, store),
        single_node=layout.nodes == 1,
    )
    return mesh, nodes


def _preflight_marker(assignment: Assignment) -> Path:
    """Return the file that exists on a node which was measured in this attempt: a restart is not measured again."""
    return assignment.work / f"preflight-{assignment.stamp}"


def _run_preflight(assignment: Assignment, mesh: Mesh, nodes: list[str], reporter: Reporter) -> None:
    """Report the preflight of these ranks. Raise TrainerError (NODE_UNFIT) on a node that must not train."""
    run = assignment.run
    _, storage = assignment.connection.connect(run)
    target = StoreTarget(storage, Encryptor(assignment.job_key), f"{run.prefix}preflight/{run.attempt_number}")
    report = Preflight(mesh, nodes, assignment.work, target).run()
    reporter.event(
        "preflight.completed", result=report.result, seconds=report.seconds, report=report.model_dump(mode="json")
    )
    reporter.flush_events()
    _preflight_marker(assignment).touch()
    check_fitness(report, nodes[assignment.node_rank], has_spare=run.spare_nodes > 0)


def _train_and_export(assignment: Assignment, mesh: Mesh, reporter: Reporter) -> EndClass:
    if assignment.run.evaluation is not None:
        end_class = run_evaluation_job(assignment, mesh, reporter)
        leave()
        return end_class
    if assignment.run.replay is not None:
        end_class = run_replay_job(assignment, mesh, reporter)
        leave()
        return end_class
    if assignment.run.export is not None:
        end_class = run_export_job(assignment, mesh, reporter)
        leave()
        return end_class
    state = build(assignment, mesh, reporter)
    try:
        end_class = train(state)
        if end_class is EndClass.COMPLETED:
            restore_best(state)
            reporter.enter_phase("export")
            state.mesh.set_timeout(EXPORT_TIMEOUT)
            export_model(state)
        reporter.enter_phase("checkpoint")
        state.writer.wait()
    finally:
        state.loader.close()
    del state
    leave()
    return end_class
