"""One rank of a run: joins the others, builds, trains, exports. Runs in a process that the fork server started."""

from torch.distributed import PrefixStore, TCPStore

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
from trainer.training.export import export_model
from trainer.training.loop import train
from trainer.training.numa import bind_to_gpu


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
        mesh = _join(assignment)
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
    assignment = assignment.with_training(resolve_parallelism(training, vocab_size, run.layout, device_bytes))
    try:
        with prefer_fast_attention(mesh.device):
            end_class = _train_and_export(assignment, mesh, reporter)
    finally:
        reporter.enter_phase("done")
        reporter.close()
    reporter.report_exit(EXIT_STATUS[end_class])
    return end_class


def _join(assignment: Assignment) -> Mesh:
    store = TCPStore(assignment.store.host, assignment.store.port, is_master=False, timeout=STORE_TIMEOUT)
    return join(
        assignment.rank,
        assignment.run.layout.world_size,
        assignment.local_rank,
        PrefixStore(f"generation{assignment.restart_count}/", store),
        single_node=assignment.run.layout.nodes == 1,
    )


def _train_and_export(assignment: Assignment, mesh: Mesh, reporter: Reporter) -> EndClass:
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
