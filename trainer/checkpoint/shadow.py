"""Shadow checkpoints: each rank copies its complete state to its node's memory, and a restart in place continues there.

A copy has all of a rank's state, also what another rank writes in a stored checkpoint, so a rank needs no other one to
restore it. The ranks agree on the newest step of which each has a complete copy. The state does not change until it is
copied; a thread computes the digest meanwhile and later, and declares the copy complete.

In a run that can lose a node, the ranks also send some of these copies to other nodes (replicas): all ranks those of
the same steps, the next one once all of the last have arrived. So one step is complete on the other nodes at any
moment, and each rank holds its own copy of it too, until the next one is complete. If a node is lost, the ranks that
take the place of its ranks fetch their copies. If the run continues on fewer nodes, or more, each rank puts its new
part of the state together from the copies of all (`trainer.checkpoint.resharding`), as the first copy of its own.
"""

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import partial

import torch
from torch import Tensor

from trainer.checkpoint.agreement import Agreement, Decision, RankReport
from trainer.checkpoint.copy_layout import (
    CopyDescription,
    Progress,
    Unusable,
    entries_of_state,
    index_of,
    size_of,
    view_of,
)
from trainer.checkpoint.host_memory import allocate, pin
from trainer.checkpoint.replicator import Replicator
from trainer.checkpoint.resharding import CopiedState, UnusableCopy, describe_state, read_state
from trainer.checkpoint.state import Shard, own_states, set_own_states
from trainer.checkpoint.writer import Identity
from trainer.contract.cost import REPLICAS
from trainer.contract.manifest import BEST_STEP, CheckpointManifest
from trainer.parallel.mesh import Mesh
from trainer.parallel.weights import Weights
from trainer.reporting.reporter import Reporter
from trainer.resilience.assignment import Assignment
from trainer.resilience.control_groups import available_memory
from trainer.resilience.peer_link import PeerError, fetch, release
from trainer.resilience.replicas import CopyId, RankCopies
from trainer.resilience.shadow_memory import SLOTS, ShadowMemory, SlotHeader, digest_of

AUTO_SHARE = 0.03
"""Of the time, what copies take at most with `shadow_every_steps` `auto`."""
AUTO_MEMORY_SHARE = 0.5
"""Of the memory that a node has available, what all of its copies may take."""
REPLICA_SHARE = 0.25
"""Of the time, during which copies are sent to other nodes at most with `auto` on GPUs, which this does not hold up. On
CPUs it is AUTO_SHARE: sending takes their time."""
_OF_A_RANK = ("rank", "mesh", "state")
"""The parts of a copy's identity in which copies of one state differ."""
_NO_MEMORY = "this rank has no memory for it"


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
        self._shards = list(shards)
        own = own_states(weights)
        self._own_names = list(own)
        self._entries = entries_of_state(shards, own)
        self._index, self._size = index_of(self._entries), size_of(self._entries)
        self._identity = {
            "job": assignment.run.job_id, "attempt": assignment.run.attempt_id, "rank": mesh.rank, "mesh": mesh.axes,
            "spec": identity.spec_digest, "data": identity.dataset_fingerprint, "state": self._index.digest,
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
            if decision.copy is not None and agreement.is_resharded(decision):
                self._reshard(agreement, decision, found, stored)
            elif decision.copy is not None and source is not None:
                because = self._fetch(decision.copy, source, found, stored)
                agreement.report_fetched({self._mesh.rank: because} if because else {})
            is_final = agreement.is_final()
            if not is_final:
                self._drop_parts(found)
                decision = agreement.decide()
        self._release(decision)
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
            ranks = range(self._mesh.world_size) if agreement.is_resharded(decision) else sorted(decision.sources)
            self._reporter.event(
                "checkpoint.restored", step=step, tier="peer" if decision.sources else "shadow",
                seconds=time.monotonic() - begin, ranks=", ".join(map(str, ranks)),
            )  # fmt: skip
        # Of ranks that read from others' copies, all know the same.
        next_loss = chosen.next_loss if agreement.is_resharded(decision) else decision.next_loss
        return Restored(step, chosen.progress, next_loss)

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
        # What the agent holds is freed once it is read, if no copies are sent to other nodes.
        is_held = self._peers is not None and not self._run.is_replicated
        problem = self._lack_of_memory(SLOTS, self._memory.used_bytes + (self._held_bytes if is_held else 0))
        if problem is not None:
            return problem
        self._lost = self._memory.open(self._size)
        for slot in range(self._memory.slots):
            self._slots.append(torch.frombuffer(self._memory.data(slot), dtype=torch.uint8))
        return None

    def _replica_problem(self) -> str | None:
        """Return why this rank cannot send copies and this node not hold others', None if they can, and an empty text
        if that was not asked for."""
        if self._peers is None or self._memory is None or not self._run.is_replicated:
            return ""
        if not self._peers.port:
            return f"the agent cannot listen on {self._peers.host}"
        return self._lack_of_memory(self._memory.slots + REPLICAS, self._memory.used_bytes + self._held_bytes)

    @property
    def _held_bytes(self) -> int:
        """Return this rank's part of the memory for copies that new ones replace."""
        return self._peers.held_bytes // self._run.layout.processes_per_node if self._peers is not None else 0

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
        described = CopyDescription.model_validate_json(header.text)
        newest = stored.step if stored is not None else -1
        self._check_description(described, header.step, newest, [*self._identity])
        if header.step >= newest and self._digest(header.slot) != described.digest:
            raise Unusable("its content does not have its digest")
        copy = CopyId(header.step, described.restart_count, self._mesh.world_size)
        return _Candidate(header.slot, copy, described.progress, header.next_loss)

    def _check_description(self, described: CopyDescription, step: int, newest: int, names: Iterable[str]) -> None:
        """Raise Unusable for a copy that a resume may not continue from. `names`: what of the identity must be equal.
        `newest`: step of the newest stored checkpoint, -1 without one."""
        for name in names:
            other, expected = described.identity.get(name), self._identity[name]
            if other != expected:
                raise Unusable(f"it is of another {name}: {other} instead of {expected}")
        corrupted = self._corrupted
        if corrupted is not None and step >= corrupted[0] and described.restart_count <= corrupted[1]:
            raise Unusable("replicas of the parameters differed in it")
        best = int(described.progress.metrics.get(BEST_STEP, 0))
        if self._policy.keep_best and newest < best != step:
            raise Unusable(f"the checkpoint of step {best}, which has the lowest held-out loss, was not stored")

    def _fetch(
        self, copy: CopyId, source: tuple[str, int], found: list[_Candidate], stored: CheckpointManifest | None
    ) -> str:
        """Fetch this rank's copy from another node into a slot, and add it to `found`. Return why it is not usable,
        empty if it is."""
        if self._peers is None or not self._slots:
            return _NO_MEMORY
        slot = self._slot_for(copy, found)
        if slot is None:
            return f"{_NO_MEMORY} beside its older copies"
        memory, data = self._opened, self._opened.data(slot)[: self._size]
        memory.begin(slot, copy.step)
        try:
            text, _ = fetch(source, self._peers.secret, self._mesh.rank, copy, data)
            memory.finish(slot, copy.step, text)
            found.append(self._check(memory.headers()[slot], stored))
        except (PeerError, Unusable, OSError) as error:
            memory.clear(slot)
            return f"it could not be fetched from {source[0]}: {error}" if isinstance(error, OSError) else str(error)
        return ""

    def _slot_for(self, copy: CopyId, found: list[_Candidate]) -> int | None:
        """Return a slot for a copy to continue from, which `found` has no longer then. None if all have older ones."""
        older = {each.slot for each in found if each.copy < copy}  # newer ones will not be chosen any more
        slot = next((slot for slot in range(self._opened.slots) if slot not in older), None)
        found[:] = [each for each in found if each.slot != slot]
        return slot

    def _reshard(
        self, agreement: Agreement, decision: Decision, found: list[_Candidate], stored: CheckpointManifest | None
    ) -> None:
        """Put together this rank's part of the state that another number of ranks has copied, in a slot, as a copy of
        this group of workers, and add it to `found`. Report what is unusable."""
        copy, peers, is_first = decision.copy, self._peers, self._mesh.rank == 0
        assert copy is not None, "there is nothing else to reshard"
        newest = stored.step if stored is not None else -1
        names = [name for name in self._identity if name not in _OF_A_RANK]
        check = partial(self._check_description, step=copy.step, newest=newest, names=names)
        if is_first and peers is not None:
            state = describe_state(decision.sources, peers.secret, copy, check)
            agreement.publish(state.without_points().model_dump_json())
        elif is_first:
            agreement.publish(CopiedState().model_dump_json())
        if not is_first or peers is None:
            state = CopiedState.model_validate_json(agreement.published())
        slot = self._slot_for(copy, found) if self._slots else None
        if state.unusable or peers is None or slot is None:
            agreement.report_fetched(state.unusable, _NO_MEMORY if peers is None or slot is None else "")
            return
        memory, own = self._opened, own_states(self._weights)
        memory.begin(slot, copy.step)
        views = self._views(slot)
        targets = [replace(shard, tensor=view) for shard, view in zip(self._shards, views, strict=False)]
        torch._foreach_copy_(views[len(targets) :], [*own.values()])
        here = peers.host, peers.port
        try:
            missing = read_state(
                state, decision.sources, peers.secret, copy, targets, check,
                lambda rank: (rank - self._mesh.rank) % copy.world_size
                + (0 if decision.sources[rank] == here else copy.world_size),
            )  # fmt: skip
        except UnusableCopy as error:
            memory.clear(slot)
            agreement.report_fetched({error.rank: str(error)})
            return
        if missing:
            memory.clear(slot)
        else:
            memory.finish(slot, copy.step, self._describe(slot, state.progress).model_dump_json().encode())
            if state.next_loss is not None:
                memory.report_loss(copy.step, state.next_loss)
            found.append(_Candidate(slot, copy, state.progress, state.next_loss))
        agreement.report_fetched({}, missing)

    def _drop_parts(self, found: list[_Candidate]) -> None:
        """Drop what this rank has read of a state that not all ranks can read. This group may copy another state after
        the same step."""
        parts = [each for each in found if each.copy.world_size != self._mesh.world_size]
        for each in parts:
            self._opened.clear(each.slot)
            found.remove(each)

    def _release(self, decision: Decision) -> None:
        """Let the agent free the copies that it holds, once nothing reads them any more. If this group of workers sends
        copies to other nodes, they are freed when these have arrived."""
        is_first_of_node = self._mesh.rank % self._run.layout.processes_per_node == 0
        if self._peers is None or not self._peers.held or decision.is_replicated or not is_first_of_node:
            return
        with contextlib.suppress(PeerError, OSError):  # then they are freed with the agent
            release((self._peers.host, self._peers.port), self._peers.secret, self._restart_count + 1)

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
        described = self._describe(slot, progress)
        text = described.model_dump_json()
        self._opened.finish(slot, step, text.encode())
        if self._replicator is not None and self._sent == (slot, step):
            self._replicator.send(
                slot, step,
                {
                    "rank": self._mesh.rank, "copy": astuple(CopyId(step, self._restart_count, self._mesh.world_size)),
                    "round": self._restart_count + 1, "text": text, "digest": described.digest,
                },
            )  # fmt: skip
        return time.thread_time() - begin

    def _describe(self, slot: int, progress: Progress) -> CopyDescription:
        """Return the description of the copy in a slot, which does not change any more."""
        return CopyDescription(
            identity=self._identity, index=self._index, progress=progress, restart_count=self._restart_count,
            digest=self._digest(slot),
        )  # fmt: skip

    def _digest(self, slot: int) -> int:
        return digest_of(self._opened.data(slot)[: self._size])

    def _load(self, slot: int) -> None:
        views = self._views(slot)
        for shard, source in zip(self._shards, views, strict=False):
            shard.tensor.copy_(source)
        own = zip(self._own_names, views[len(self._shards) :], strict=True)
        set_own_states({name: view.clone() for name, view in own}, self._weights)
        self._weights.sync_compute_copies()

    def _views(self, slot: int) -> list[Tensor]:
        """Return the tensors of a slot: those of the state in order, then the rank's own."""
        return [view_of(self._slots[slot], entry) for entry in self._entries]
