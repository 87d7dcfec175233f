"""Shadow checkpoints: each rank copies its complete state to its node's memory, and a restart in place continues there.

A copy has all of a rank's state, also what another rank writes in a stored checkpoint, so a rank needs no other one to
restore it. The ranks agree on the newest step of which each has a complete copy. The state does not change until it is
copied; a thread computes the digest meanwhile and later, and declares the copy complete.

In a run with spare nodes, the ranks also send some of these copies to other nodes (replicas): all ranks those of the
same steps, the next one once all of the last have arrived. So one step is complete on the other nodes at any moment,
and each rank holds its own copy of it too, until the next one is complete. If a node is lost, the ranks that take the
place of its ranks fetch their copies.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import ConfigDict
from torch import Tensor

from trainer.checkpoint.agreement import Agreement, RankReport
from trainer.checkpoint.replicator import Replicator
from trainer.checkpoint.state import Shard, own_states, set_own_states
from trainer.checkpoint.writer import Identity
from trainer.contract.base import WireModel
from trainer.contract.cost import REPLICAS
from trainer.contract.manifest import BEST_STEP, CheckpointManifest
from trainer.contract.run import MetricPoint
from trainer.parallel.mesh import Mesh
from trainer.parallel.weights import Weights
from trainer.reporting.gradient_watch import GradientWatchState, OutlierState
from trainer.reporting.reporter import Reporter
from trainer.resilience.assignment import Assignment
from trainer.resilience.control_groups import available_memory
from trainer.resilience.peer_link import PeerError, fetch
from trainer.resilience.replicas import CopyId, RankCopies
from trainer.resilience.shadow_memory import PAGE, SLOTS, ShadowMemory, SlotHeader, digest_of

AUTO_SHARE = 0.03
"""Of the time, what copies take at most with `shadow_every_steps` `auto`."""
AUTO_MEMORY_SHARE = 0.5
"""Of the memory that a node has available, what all of its copies may take."""
REPLICA_SHARE = 0.25
"""Of the time, during which copies are sent to other nodes at most with `auto` on GPUs, which this does not hold up. On
CPUs it is AUTO_SHARE: sending takes their time."""
_ALIGNMENT = 64  # bytes: of a tensor in a copy, and of its end


class Progress(WireModel):
    """What training knows beside its tensors. `last_saved`: step of the newest stored checkpoint that was begun, -1
    without one. `metrics`: the latest, for checkpoints. `skipped`: steps in a row in which it diverged, and all steps
    without an update. `watch`, `losses`: the limits of gradients and of losses. `points`: metrics that may not have
    left the process, or the node, if its copies are sent to another node."""

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")

    last_saved: int = -1
    metrics: dict[str, float] = {}
    skipped: tuple[int, int] = (0, 0)
    watch: GradientWatchState = GradientWatchState()
    losses: OutlierState = OutlierState()
    points: list[MetricPoint] = []


class _Description(WireModel):
    """The text in the header of a copy. `identity`: what must be equal for it to be used. `restart_count`: of the
    worker group that made it. `digest`: that of its data."""

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")

    identity: dict[str, str | int | dict[str, int]]
    progress: Progress
    restart_count: int
    digest: int


@dataclass(frozen=True)
class Restored:
    """The state after `step` steps, restored from a shadow checkpoint or a replica. `next_loss`: that of the next step,
    if the processes before had computed it."""

    step: int
    progress: Progress
    next_loss: float | None


@dataclass(frozen=True)
class _Candidate:
    """A complete copy with the right digest."""

    slot: int
    copy: CopyId
    progress: Progress
    next_loss: float | None


class Unusable(Exception):
    """Why a copy is not used."""


class ShadowCheckpoints:
    """This rank's shadow checkpoints. `restore` is collective, and all ranks call `take` after the same step.

    No rank may begin a copy before all ranks have finished theirs, so that one common step is complete at any moment.
    Between two copies there is therefore a collective after which each knows that no rank `is_copying`: the one that
    follows `protect_state` before a copy of the spec's interval, or that which reports that a copy `is_due`.
    """

    def __init__(
        self,
        assignment: Assignment,
        mesh: Mesh,
        identity: Identity,
        weights: Weights,
        shards: Sequence[Shard],
        reporter: Reporter,
    ) -> None:
        """`shards`: all of this rank's live shards."""
        self._policy, self._run = assignment.run.checkpoint, assignment.run
        self._mesh, self._weights, self._reporter = mesh, weights, reporter
        self._memory, self._peers = assignment.shadow, assignment.peers
        self._restart_count, self._corrupted = assignment.restart_count, assignment.corrupted
        self._live = [*(shard.tensor for shard in shards)]
        own = own_states(weights)
        self._own_names = list(own)
        self._places = _places([*self._live, *own.values()])
        self._size = _aligned(self._places[-1][1])
        self._identity = {
            "job": assignment.run.job_id, "attempt": assignment.run.attempt_id, "rank": mesh.rank, "mesh": mesh.axes,
            "spec": identity.spec_digest, "data": identity.dataset_fingerprint, "state": _layout_digest(shards, own),
            "number of rollbacks": len(assignment.run.rollbacks),
        }  # fmt: skip
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shadow")
        self._copying: Future[float] | None = None
        self._copied: torch.cuda.Event | None = None
        self._held: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._stream = torch.cuda.Stream(mesh.device) if mesh.device.type == "cuda" else None
        self._slots: list[Tensor] = []
        self._lost: list[SlotHeader] = []
        self._newest_slot: int | None = None
        self._restored_slot: int | None = None
        self._replicator: Replicator | None = None
        self._sent: tuple[int, int] | None = None  # slot and step of the copy that is being sent, or was sent last
        self._replicated: tuple[int, int] | None = None  # of the newest that has arrived for all ranks
        self._may_send = True
        self._rest_until = 0.0
        self._blocked = self._cost = self._stall = 0.0
        self._began_at = -math.inf
        self._preparing: list[Future[None]] = []
        self.is_used = False
        self.last_step = -1
        """Of the newest copy that was begun."""

    def restore(self, stored: CheckpointManifest | None) -> Restored | None:
        """Agree with the other ranks on the newest step of which each has a complete copy, or can fetch it from another
        node, and restore it; None if there is none, or `stored` is newer. Also decide whether this group of workers
        takes copies, and whether it sends them to other nodes.

        Reports why copies are not taken, and why an existing one is not used.
        """
        problem = self._open()
        found, skipped = self._candidates(stored) if problem is None else ([], [])
        mine = RankReport(
            problem, self._replica_problem(), RankCopies({each.copy: each.next_loss for each in found}, skipped)
        )
        agreement = Agreement(self._mesh, self._run, self._reporter, stored.step if stored is not None else 0)
        agreement.report(mine, self._peers)
        decision, begin, is_final = agreement.decide(), time.monotonic(), False
        while not is_final:
            source = decision.sources.get(self._mesh.rank)
            if source is not None and decision.copy is not None:
                agreement.report_fetched(self._fetch(decision.copy, source, found, stored))
            is_final = agreement.is_final()
            decision = decision if is_final else agreement.decide()
        self.is_used = decision.is_used
        if self.is_used:
            used_slots = self._opened.slots if decision.is_replicated else SLOTS
            self._preparing = [self._thread.submit(self._prepare, slot) for slot in range(used_slots)]
        if decision.is_replicated and self._peers is not None:
            peer, secret = agreement.peer_of_node(), self._peers.secret
            self._replicator = Replicator(peer, secret, self._opened, self._size, self._mesh.rank, self._reporter)
        chosen = next((each for each in found if each.copy == decision.copy), None)
        if self._memory is not None and problem is None:
            self._memory.report_restored(None if chosen is None else chosen.copy.step)
        if chosen is None:
            return None
        self._load(chosen.slot)
        step, self._newest_slot, self._restored_slot = chosen.copy.step, chosen.slot, chosen.slot
        if self._mesh.rank == 0:
            self._reporter.event(
                "checkpoint.restored", step=step, tier="peer" if decision.sources else "shadow",
                seconds=time.monotonic() - begin, ranks=", ".join(map(str, sorted(decision.sources))),
            )  # fmt: skip
        return Restored(step, chosen.progress, decision.next_loss)

    @property
    def is_due(self) -> bool:
        """Return whether, with `auto`, the first rank asks all ranks for a copy."""
        if not self.is_used or self._policy.shadow_every_steps != "auto" or self._mesh.rank != 0:
            return False
        if self.is_copying or not self._is_measured():
            return False
        return time.monotonic() - self._began_at >= self._cost / AUTO_SHARE

    @property
    def is_copying(self) -> bool:
        """Return whether this rank's newest copy is not complete yet, or the memory is not prepared."""
        if not all(each.done() for each in self._preparing):
            return True
        return self._copying is not None and not self._copying.done()

    def is_scheduled(self, step: int) -> bool:
        """Return whether the interval of the spec asks for a copy after `step` steps."""
        every = self._policy.shadow_every_steps
        return self.is_used and isinstance(every, int) and step % every == 0

    def take(self, step: int, shards: Iterable[Shard], progress: Progress) -> None:
        """Begin a copy of the state after `step` steps. Call `protect_state` before the state changes."""
        self.wait()
        begin = self._began_at = time.monotonic()
        self.last_step = step
        memory, slot = self._opened, self._free_slot()
        self._preparing[slot].result()
        memory.begin(slot, step)
        live, own = [shard.tensor for shard in shards], own_states(self._weights)
        targets = self._views(slot)
        self._copied = self._copy([*live, *own.values()], targets)
        self._newest_slot = slot
        if self._replicator is not None and self._may_send:
            self._sent, self._may_send, self._rest_until = (slot, step), False, math.inf
        self._blocked = time.monotonic() - begin
        self._stall += self._blocked
        self._copying = self._thread.submit(partial(self._finish, slot, step, progress, self._copied))

    def _free_slot(self) -> int:
        """Return a slot that has neither the newest copy nor one that another node's ranks may need."""
        taken = {self._newest_slot}
        if self._replicator is not None:
            taken.add(self._replicated[0] if self._replicated is not None else self._restored_slot)
            taken.add(self._sent[0] if self._sent is not None else None)
        return next(slot for slot in range(len(self._preparing)) if slot not in taken)

    @property
    def is_sent_to_nodes(self) -> bool:
        """Return whether copies are sent to other nodes."""
        return self._replicator is not None

    @property
    def is_replicated(self) -> bool:
        """Return whether the copy that this rank sent last has arrived at the other node, and the next one may be sent:
        with `auto`, the first rank waits so that its transfers take no more than REPLICA_SHARE of the time."""
        if self._replicator is None or (self._sent is not None and not self._replicator.has_arrived(self._sent[1])):
            return False
        if self._policy.shadow_every_steps != "auto" or self._mesh.rank != 0:
            return True
        if self._rest_until == math.inf:
            share = AUTO_SHARE if self._stream is None else REPLICA_SHARE
            self._rest_until = time.monotonic() + self._replicator.seconds * (1 / share - 1)
        return time.monotonic() >= self._rest_until

    def report_replicated(self, step: int, num_ranks: float) -> None:
        """Report for how many ranks `is_replicated` was true after `step` steps: the same number on all ranks."""
        if self._replicator is None or num_ranks < self._mesh.world_size or self._may_send:
            return
        if self._sent is not None and step >= self._sent[1]:
            self._replicated, self._may_send = self._sent, True

    def replica_age(self, step: int) -> int | None:
        """Return how many steps before `step` the newest copy was made that has arrived for all ranks."""
        return step - self._replicated[1] if self._replicator is not None and self._replicated is not None else None

    def protect_state(self, next_step: int) -> None:
        """Wait until the state is copied, before it changes to that after `next_step` steps, and until the copy is
        complete if that state is to be copied as well. A GPU waits by itself. Call it in each step."""
        if self._copying is None or self._copying.done():
            return
        begin = time.monotonic()
        events = None
        if self._copied is not None:
            events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            events[0].record()
            torch.cuda.current_stream().wait_event(self._copied)
        if self.is_scheduled(next_step):
            self._copying.result()
        if events is not None:
            events[1].record()
            self._held.append(events)
        else:
            self._stall += time.monotonic() - begin

    def wait(self) -> None:
        """Wait until the newest copy is complete, and measure what it cost."""
        if self._copying is None:
            return
        digest_seconds = self._copying.result()
        held = 0.0
        for begin, end in self._held:
            end.synchronize()
            held += begin.elapsed_time(end) / 1000
        self._stall += held
        self._copying, self._copied, self._held = None, None, []
        # On a CPU the thread that computes the digest takes time from training.
        self._cost = self._blocked + held + (digest_seconds if self._stream is None else 0.0)

    def _is_measured(self) -> bool:
        """Return whether it is known what the newest copy, which is complete, has cost: a GPU may still be computing a
        step that waited for it."""
        if all(end.query() for _, end in self._held):
            self.wait()
        return self._copying is None

    def pop_stall(self) -> float:
        """Return how many seconds training has waited for copies since the last call."""
        stall, self._stall = self._stall, 0.0
        return stall

    def report_loss(self, step: int, loss: float) -> None:
        """Report the loss of the step after `step` steps, which must be the same if a restart takes this step again."""
        if self.is_used:
            self._opened.report_loss(step, loss)

    def discard(self) -> None:
        """Drop all copies."""
        self.wait()
        self._opened.discard()

    @property
    def _opened(self) -> ShadowMemory:
        assert self._memory is not None, "used only with memory"
        return self._memory

    def _open(self) -> str | None:
        """Map the memory. Return why this rank cannot take copies, None if it can, and an empty text if none were
        asked for."""
        if self._memory is None:
            return ""
        self._memory.report_restored(None)
        problem = self._lack_of_memory(SLOTS, self._memory.used_bytes)
        if problem is not None:
            return problem
        self._lost = self._memory.open(self._size)
        for slot in range(self._memory.slots):
            self._slots.append(torch.frombuffer(self._memory.data(slot), dtype=torch.uint8))
        return None

    def _replica_problem(self) -> str | None:
        """Return why this rank cannot send copies and this node not hold others', None if they can, and an empty text
        if that was not asked for."""
        if self._peers is None or self._memory is None:
            return ""
        if not self._peers.port:
            return f"the agent cannot listen on {self._peers.host}"
        held = self._peers.held_bytes // self._run.layout.processes_per_node
        return self._lack_of_memory(self._memory.slots + REPLICAS, self._memory.used_bytes + held)

    def _lack_of_memory(self, copies: int, used: int) -> str | None:
        available, ranks = available_memory(), self._run.layout.processes_per_node
        needed = copies * self._size
        if available is None or needed <= used:
            return None
        missing = (needed - used) * ranks
        share = AUTO_MEMORY_SHARE if self._policy.shadow_every_steps == "auto" else 1.0
        if missing <= share * available:
            return None
        limit = "; `auto` takes at most half of that" if share < 1.0 else ""
        return (
            f"{copies} copies of the state of {ranks} processes need {missing / 2**30:.1f} GiB more, and the node has "
            f"{available / 2**30:.1f} GiB available{limit}"
        )

    def _candidates(self, stored: CheckpointManifest | None) -> tuple[list[_Candidate], list[tuple[int, str]]]:
        """Return the copies that this rank can use, and (step, reason) of those that it cannot."""
        found, skipped = [], []
        for header in [*self._lost, *self._opened.headers()]:
            if header.step < 0:
                continue
            try:
                found.append(self._check(header, stored))
            except Unusable as error:
                skipped.append((header.step, str(error)))
        return found, skipped

    def _check(self, header: SlotHeader, stored: CheckpointManifest | None) -> _Candidate:
        """Raise Unusable for a copy that is torn, altered, of another run, or that a resume may not continue from."""
        if header.text is None:
            raise Unusable("it is incomplete: its process ended while it was made")
        described = _Description.model_validate_json(header.text)
        for name, expected in self._identity.items():
            other = described.identity.get(name)
            if other != expected:
                raise Unusable(f"it is of another {name}: {other} instead of {expected}")
        corrupted = self._corrupted
        if corrupted is not None and header.step >= corrupted[0] and described.restart_count <= corrupted[1]:
            raise Unusable("replicas of the parameters differed in it")
        progress = described.progress
        newest = stored.step if stored is not None else -1
        best = int(progress.metrics.get(BEST_STEP, 0))
        if self._policy.keep_best and newest < best != header.step:
            raise Unusable(f"the checkpoint of step {best}, which has the lowest held-out loss, was not stored")
        if header.step >= newest and self._digest(header.slot) != described.digest:
            raise Unusable("its content does not have its digest")
        return _Candidate(header.slot, CopyId(header.step, described.restart_count), progress, header.next_loss)

    def _fetch(
        self, copy: CopyId, source: tuple[str, int], found: list[_Candidate], stored: CheckpointManifest | None
    ) -> str:
        """Fetch this rank's copy from another node into a slot, and add it to `found`. Return why it is not usable,
        empty if it is."""
        if self._peers is None or self._memory is None or not self._slots:
            return "this rank has no memory for it"
        older = {each.slot for each in found if each.copy < copy}  # newer ones will not be chosen any more
        slot = next((slot for slot in range(self._memory.slots) if slot not in older), None)
        if slot is None:
            return "this rank has no memory for it beside its older copies"
        found[:] = [each for each in found if each.slot != slot]
        self._memory.begin(slot, copy.step)
        try:
            text = fetch(source, self._peers.secret, self._mesh.rank, copy, self._memory.data(slot)[: self._size])
            self._memory.finish(slot, copy.step, text)
            found.append(self._check(self._memory.headers()[slot], stored))
        except (PeerError, Unusable, OSError) as error:
            self._memory.clear(slot)
            return f"it could not be fetched from {source[0]}: {error}" if isinstance(error, OSError) else str(error)
        return ""

    def _prepare(self, slot: int) -> None:
        """Allocate the memory of a slot, beside the start-up: the first copy would take several times as long."""
        allocate(self._slots[slot])
        if self._stream is not None:
            pin(self._slots[slot])

    def _copy(self, sources: list[Tensor], targets: list[Tensor]) -> torch.cuda.Event | None:
        if self._stream is None:
            torch._foreach_copy_(targets, sources)
            return None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking=True)
            event = torch.cuda.Event(enable_timing=True)
            event.record(self._stream)
        return event

    def _finish(self, slot: int, step: int, progress: Progress, copied: torch.cuda.Event | None) -> float:
        """Declare a copy complete, and let it be sent. Return the CPU seconds that the digest and the reports took."""
        if copied is not None:
            copied.synchronize()
        begin = time.thread_time()
        self._reporter.flush_events()
        digest = self._digest(slot)
        described = _Description(
            identity=self._identity, progress=progress, restart_count=self._restart_count, digest=digest
        )
        text = described.model_dump_json()
        self._opened.finish(slot, step, text.encode())
        if self._replicator is not None and self._sent == (slot, step):
            self._replicator.send(
                slot, step,
                {
                    "rank": self._mesh.rank, "copy": [step, self._restart_count], "round": self._restart_count + 1,
                    "text": text, "digest": digest,
                },
            )  # fmt: skip
        return time.thread_time() - begin

    def _digest(self, slot: int) -> int:
        return digest_of(self._opened.data(slot)[: self._size])

    def _load(self, slot: int) -> None:
        views = self._views(slot)
        for target, source in zip(self._live, views, strict=False):
            target.copy_(source)
        own = zip(self._own_names, views[len(self._live) :], strict=True)
        set_own_states({name: view.clone() for name, view in own}, self._weights)
        self._weights.sync_compute_copies()

    def _views(self, slot: int) -> list[Tensor]:
        """Return the tensors of a slot: those of the state in order, then the rank's own."""
        flat = self._slots[slot]
        return [flat[begin:end].view(dtype).view(shape) for begin, end, dtype, shape in self._places]


def _places(tensors: Sequence[Tensor]) -> list[tuple[int, int, torch.dtype, torch.Size]]:
    """Return where each tensor is in a copy, in bytes, with its type and shape."""
    places, end = [], 0
    for tensor in tensors:
        begin = _aligned(end)
        end = begin + tensor.numel() * tensor.element_size()
        places.append((begin, end, tensor.dtype, tensor.shape))
    return places


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT


def _layout_digest(shards: Iterable[Shard], own: Mapping[str, Tensor]) -> str:
    """Return a digest of what a copy has in which order."""
    rows = [[each.stored, str(each.tensor.dtype), each.offsets, list(each.tensor.shape), each.shape] for each in shards]
    rows += [[name, str(tensor.dtype), list(tensor.shape)] for name, tensor in own.items()]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def allocate(memory: Tensor) -> None:
    """Let the kernel allocate memory, without a change of its content. It begins and ends at pages."""
    memory.view(-1, PAGE)[:, 0].add_(0)


def pin(memory: Tensor) -> None:
    """Let a GPU copy to this memory by itself. Where the driver refuses it, copies are slower."""
    torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
