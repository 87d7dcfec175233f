"""Replay segments of a finished run: load a stored checkpoint, train to the next one, and compare the two states."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributed import PrefixStore

from trainer.checkpoint.reader import load, read_into
from trainer.checkpoint.shadow import ShadowCheckpoints
from trainer.checkpoint.state import RNG_PREFIX, Shard, live_shards, own_states
from trainer.checkpoint.writer import SHARDS_TIMEOUT
from trainer.contract.encryption import DecryptionError, Encryptor, check_manifest
from trainer.contract.manifest import CheckpointManifest
from trainer.contract.replay import MAX_DIFFERENCES, ReplayResult, ReplaySegment, TensorDifference, Verdict
from trainer.contract.run import EndClass, RunConfig
from trainer.contract.timeouts import TRAINING_TIMEOUT
from trainer.contract.training import TrainingSpec
from trainer.errors import TrainerError
from trainer.parallel.mesh import Mesh
from trainer.parallel.weights import Weights
from trainer.reporting.profiling import StepProfiler
from trainer.reporting.reporter import Reporter
from trainer.reporting.suspicion import is_exact
from trainer.resilience.assignment import Assignment, HttpConnection
from trainer.storage.base import Storage
from trainer.training.build import TrainState, build
from trainer.training.loop import make_step_taker, warm_up_if_needed
from trainer.training.measurements import highest
from trainer.training.monitor import Monitor
from trainer.training.resume import Resumed, names_damage, resumed_from

PARAMETER_PREFIX = "model/"


class SegmentEnded(Exception):
    """A segment cannot be compared tensor by tensor; raised by all ranks together. `verdict`: what that shows."""

    def __init__(self, verdict: Verdict, because: str) -> None:
        super().__init__(because)
        self.verdict = verdict


@dataclass(frozen=True)
class Compared:
    """A rank's part of a tensor. `squares`: sum of the squared differences; `reference`: that of what the difference is
    measured by, the change of a parameter or the stored tensor."""

    is_equal: bool
    largest: float
    squares: float
    reference: float


def run_replay_job(assignment: Assignment, mesh: Mesh, reporter: Reporter) -> EndClass:
    """Replay the segments that the platform has chosen, and register each result; a collective. Return COMPLETED or
    STOPPED."""
    run = assignment.run
    assert run.replay is not None, "of a replay"
    platform, _ = assignment.connection.connect(run)
    for segment in run.replay.segments:
        begin = time.monotonic()
        result = replay_segment(assignment, mesh, reporter, segment)
        if result is None:
            return EndClass.STOPPED
        if mesh.rank == 0:
            platform.register_replay(result)
        reporter.event(
            "replay.segment", number=segment.number, first_step=segment.start.step if segment.start else 0,
            last_step=segment.end.step, verdict=result.verdict, because=result.because,
            seconds=time.monotonic() - begin,
        )  # fmt: skip
        reporter.report_step(segment.end.step)
    return EndClass.COMPLETED


def replay_segment(
    assignment: Assignment, mesh: Mesh, reporter: Reporter, segment: ReplaySegment
) -> ReplayResult | None:
    """Return the result of a segment, complete on the first rank; None if the attempt is to stop. A collective."""
    replay = assignment.run.replay
    assert replay is not None, "of a replay"
    assignment = _as_resumed(assignment, segment)
    restorer = Restorer(mesh, segment)
    state = None
    try:
        _check_authentic(assignment, segment)
        state = build(assignment, mesh, reporter, restorer.restore)
        _check_record(state.training, segment)
        before = {
            shard.stored: shard.tensor.to("cpu", copy=True)
            for shard in _compared_shards(state)
            if shard.stored.startswith(PARAMETER_PREFIX)
        }
        if not _take_steps(state, segment.end.step):
            return None
        reporter.enter_phase("checkpoint")
        end = restorer.read_end(state)
        found = compare(state, end, before, with_own=segment.end.mesh == state.mesh.axes)
        why_inexact = "" if replay.is_same_accelerator else "the job ran on another kind of accelerator"
        why_inexact = why_inexact or _why_inexact(state, segment)
        return result_of(
            segment, _gather(found, state.mesh.open_store(f"replay/{segment.number}/"), state.mesh), why_inexact,
            replay.tolerance,
        )  # fmt: skip
    except SegmentEnded as error:
        return ReplayResult(number=segment.number, verdict=error.verdict, is_exact=False, because=str(error)[:2000])
    finally:
        if state is not None:
            state.loader.close()


def _as_resumed(assignment: Assignment, segment: ReplaySegment) -> Assignment:
    """Return the assignment of a run of the replayed job that resumes from the start of the segment, with its
    micro-batches. It reads what is stored, not copies on this node."""
    run = assignment.run
    assert run.replay is not None, "of a replay"
    sizes = [size for size in (segment.end.micro_batch, assignment.largest_micro_batch) if size is not None]
    connection = assignment.connection
    if isinstance(connection, HttpConnection):
        connection = replace(connection, checkpoint_cache=None)
    return replace(
        assignment,
        connection=connection,
        run=run.model_copy(update={"job_id": run.replay.job_id, "resume": segment.start}),
        job_key=assignment.replayed_key,
        largest_micro_batch=min(sizes, default=None),
    )


def _check_authentic(assignment: Assignment, segment: ReplaySegment) -> None:
    """Raise SegmentEnded for the record of a checkpoint that was not signed with the job's key."""
    for each in (segment.start, segment.end):
        if each is not None:
            try:
                check_manifest(each, Encryptor(assignment.job_key), job_id=assignment.run.job_id)
            except DecryptionError as error:
                because = f"the record of the checkpoint of step {each.step} is not authentic: {error}"
                raise SegmentEnded("not_comparable", because) from error


class Restorer:
    """Reads the two checkpoints of a segment. If one rank cannot, all ranks raise SegmentEnded."""

    def __init__(self, mesh: Mesh, segment: ReplaySegment) -> None:
        self._mesh, self._segment = mesh, segment

    def restore(
        self,
        run: RunConfig,
        shadows: ShadowCheckpoints,
        shards: Sequence[Shard],
        weights: Weights,
        storage: Storage,
        encryptor: Encryptor,
        dataset_fingerprint: str,
        reporter: Reporter,
    ) -> Resumed:
        """Load the start of the segment as a resume does; see `trainer.training.resume.resume`."""
        start, end = self._segment.start, self._segment.end
        for each in (start, end):
            if each is not None and each.dataset_fingerprint != dataset_fingerprint:
                raise SegmentEnded(
                    "differs",
                    f"the checkpoint of step {each.step} was trained on data with the fingerprint "
                    f"{each.dataset_fingerprint[:12]}; the data of the job's spec has {dataset_fingerprint[:12]}",
                )
        if start is None:
            return Resumed(is_restored=False)

        def read() -> None:
            load(start, shards, weights, storage, encryptor, dataset_fingerprint)

        with reporter.phase("load", heartbeat_phase="load"):
            self._read_together(start, read)
            weights.sync_compute_copies()
        return resumed_from(start)

    def read_end(self, state: TrainState) -> dict[str, Tensor]:
        """Return what the end of the segment has of the tensors that this rank compares, by name, on the CPU."""
        end, mesh, found = self._segment.end, state.mesh, {}
        targets = [
            replace(shard, tensor=torch.empty_like(shard.tensor, device="cpu")) for shard in _compared_shards(state)
        ]

        def read() -> None:
            mine = mesh.rank if end.mesh == mesh.axes else None
            missing, own = read_into(targets, end.files, state.storage, state.encryptor, mine)
            lacking = [shard.stored for shard in missing]
            if mine is not None:
                lacking += [name for name in own_states(state.model.weights) if name not in own]
            if lacking:
                text = f"the checkpoint of step {end.step} does not contain {lacking[0]}"
                raise TrainerError(EndClass.CHECKPOINT_DAMAGED, text)
            found.update(own)

        self._read_together(end, read)
        return found | {shard.stored: shard.tensor for shard in targets}

    def _read_together(self, stored: CheckpointManifest, read: Callable[[], None]) -> None:
        ended = None
        try:
            with names_damage(stored):
                read()
        except TrainerError as error:
            if error.end_class not in (EndClass.CHECKPOINT_DAMAGED, EndClass.BAD_SPEC):
                raise
            is_damaged = error.end_class is EndClass.CHECKPOINT_DAMAGED
            ended = SegmentEnded("not_comparable" if is_damaged else "differs", str(error))  # of another model
        if highest(float(ended is not None), self._mesh) > 0:
            raise ended or SegmentEnded("not_comparable", f"another rank cannot read the checkpoint of {stored.step}")


def _take_steps(state: TrainState, last: int) -> bool:
    """Take the steps up to `last` as training does, without saves and evaluations. Return False if it is to stop."""
    reporter, monitor, profiler = state.reporter, Monitor(state), StepProfiler(state.assignment)
    steps = make_step_taker(state, monitor, profiler)
    warm_up_if_needed(state)
    reporter.enter_phase("training")
    reporter.event("training.started", step=state.first_step)
    state.model.weights.begin_step(state.first_step)
    monitor.clock.resume()
    try:
        for step in range(state.first_step, last):
            known = steps.take(step, state.loader.next_step(step))
            monitor.report_steps(known)
            reporter.report_step(step + 1)
            if step == state.first_step:
                state.mesh.set_timeout(TRAINING_TIMEOUT)
            if any(each.ranks_stopping > 0 for each in known):
                return False
            if (step + 1) % state.training.evaluation.every_steps == 0:  # where the run read its statistics
                monitor.report_steps(steps.drain())
        monitor.report_steps(steps.drain())
    except TrainerError as error:
        if error.end_class is not EndClass.LOSS_DIVERGED:
            raise
        raise SegmentEnded("differs", f"the run continued, but in the replay the loss diverged: {error}") from error
    profiler.close()
    return True


def _compared_shards(state: TrainState) -> list[Shard]:
    """Return the live shards that this rank would write: each part of the state is compared by one rank."""
    return [shard for shard in live_shards(state.model.weights, state.optimizer) if shard.is_mine]


def compare(
    state: TrainState, stored: Mapping[str, Tensor], before: Mapping[str, Tensor], *, with_own: bool
) -> dict[str, Compared]:
    """Return the comparison of this rank's part of the state with the stored one, by name. `before`: the parameters at
    the start of the segment. `with_own`: include the state that only one rank has, but for random states, which depend
    on what else the process did."""
    live = {shard.stored: shard.tensor for shard in _compared_shards(state)}
    if with_own:
        own = own_states(state.model.weights)
        live |= {
            f"{name} of rank {state.mesh.rank}": each for name, each in own.items() if not name.startswith(RNG_PREFIX)
        }
        stored = {**stored, **{f"{name} of rank {state.mesh.rank}": stored[name] for name in own}}
    return {name: compare_tensors(tensor.to("cpu"), stored[name], before.get(name)) for name, tensor in live.items()}


def compare_tensors(replayed: Tensor, stored: Tensor, before: Tensor | None) -> Compared:
    """Compare two tensors of the same shape. `before`: a parameter at the start of the segment."""
    reference = float((stored.double() if before is None else stored.double() - before.double()).square().sum())
    if _bits(replayed).equal(_bits(stored)):
        return Compared(True, 0.0, 0.0, reference)
    difference = replayed.double() - stored.double()
    return Compared(False, float(difference.abs().max()), float(difference.square().sum()), reference)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _gather(mine: Mapping[str, Compared], store: PrefixStore, mesh: Mesh) -> dict[str, Compared]:
    """Return the comparisons of all ranks on the first one, joined by tensor; this rank's on the others."""
    if mesh.rank > 0:
        store.set(str(mesh.rank), json.dumps({name: vars(each) for name, each in mine.items()}))
        return dict(mine)
    found = dict(mine)
    others = [str(rank) for rank in range(1, mesh.world_size)]
    if others:
        store.wait(others, SHARDS_TIMEOUT)
    for rank in others:
        for name, values in json.loads(store.get(rank)).items():
            other, known = Compared(**values), found.get(name)
            found[name] = other if known is None else Compared(
                known.is_equal and other.is_equal,
                max(known.largest, other.largest, key=lambda value: (math.isnan(value), value)),
                known.squares + other.squares,
                known.reference + other.reference,
            )  # fmt: skip
    return found


def result_of(
    segment: ReplaySegment, found: Mapping[str, Compared], why_inexact: str, tolerance: float
) -> ReplayResult:
    """Return the result of a segment by the comparisons of its tensors."""
    differing = [_difference(name, each) for name, each in found.items() if not each.is_equal]
    differing.sort(key=lambda each: -math.inf if each.largest is None else -each.largest)
    within = all(each.relative is not None and each.relative <= tolerance for each in differing)
    verdict: Verdict = "differs"
    if not differing:
        verdict, because = "equal", why_inexact
    elif why_inexact and within:
        verdict, because = "within_tolerance", why_inexact
    else:
        worst = differing[0]
        by = "a value is not finite" if worst.largest is None else f"by {worst.largest:.3g} at most"
        because = f"{len(differing)} of {len(found)} tensors differ, {worst.name} the most ({by})"
        because += f"; compared within the tolerance {tolerance:g}: {why_inexact}" if why_inexact else ""
    return ReplayResult(
        number=segment.number, verdict=verdict, is_exact=not why_inexact, tensors=len(found), differing=len(differing),
        differences=differing[:MAX_DIFFERENCES], because=because,
    )  # fmt: skip


def _difference(name: str, found: Compared) -> TensorDifference:
    relative = math.sqrt(found.squares / found.reference) if found.reference > 0 else math.inf
    return TensorDifference(
        name=name[:300],
        largest=found.largest if math.isfinite(found.largest) else None,
        relative=relative if math.isfinite(relative) else None,
    )


def _check_record(training: TrainingSpec, segment: ReplaySegment) -> None:
    """Raise SegmentEnded if a checkpoint records what the training of the spec does not have."""
    for each in (segment.start, segment.end):
        if each is None:
            continue
        record = f"the checkpoint of step {each.step} records"
        if each.step > training.steps:
            raise SegmentEnded("differs", f"{record} more steps than the {training.steps} of the spec")
        if each.data_position != each.step:
            raise SegmentEnded("differs", f"{record} that the data continues at step {each.data_position}")
        tokens = training.tokens_before(each.step)
        if each.tokens_seen != tokens:
            raise SegmentEnded("differs", f"{record} {each.tokens_seen} tokens; the spec has {tokens} by then")


def _why_inexact(state: TrainState, segment: ReplaySegment) -> str:
    """Return why bits may differ though nothing is wrong, empty if they may not."""
    stored = [each for each in (segment.start, segment.end) if each is not None]
    here = state.mesh.axes
    for each in stored:
        if (each.mesh, each.world_size) != (here, state.mesh.world_size):
            return f"step {each.step} was computed on the mesh {_shown(each.mesh)}, this is {_shown(here)}"
        if each.micro_batch not in (None, state.part.micro_batch):
            return f"step {each.step} had micro-batches of {each.micro_batch} sequences, here {state.part.micro_batch}"
        if each.torch_version != torch.__version__:
            return f"step {each.step} was computed by torch {each.torch_version}, this is {torch.__version__}"
    if not is_exact(state.mesh.device):
        return "sums on a GPU depend on timing without training.deterministic"
    return ""


def _shown(axes: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in axes.items() if size > 1) or "of one process"
