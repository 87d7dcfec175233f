"""Run an attempt on one node: data, rendezvous, worker groups and their restarts, reports, and the end marker."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx

from trainer.agent.base_model import fetch_base_model
from trainer.agent.cache import team_cache
from trainer.agent.copies import NodeCopies
from trainer.agent.data_report import report_on_data
from trainer.agent.dataset import DatasetPreparer, NodeProcesses, raw_sources
from trainer.agent.hang_watch import Stall
from trainer.agent.interruption import read_interruption_notice
from trainer.agent.ladder import Rung, Situation, choose_rung
from trainer.agent.logs import LogFollower, logged_errors
from trainer.agent.node_servers import NodeServers
from trainer.agent.profiles import ProfileUploader
from trainer.agent.rendezvous_client import NodeIdentity, RendezvousClient, format_mapping, max_neighbour_hops
from trainer.agent.shipper import Shipper
from trainer.agent.worker_group import Outcome, WorkerGroup
from trainer.client.platform import AttemptOver, Platform
from trainer.contract.encryption import Encryptor, check_manifest
from trainer.contract.events import WAIT_FOR_DATA
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.manifest import CheckpointManifest
from trainer.contract.node_rendezvous import JoinReply
from trainer.contract.parallelism import MeshSizes
from trainer.contract.rollback import ACCELERATOR_LAG, DIVERGED_STEPS, Rollback, RollbackRequest, first_sequence
from trainer.contract.run import (
    AttemptEnd,
    DamagedCheckpoint,
    DataKeys,
    EndClass,
    Heartbeat,
    ProgressEvent,
    RunConfig,
    StopRequest,
)
from trainer.contract.training import TrainingSpec
from trainer.data.shards import DatasetIndex
from trainer.data.source import PreparedSource
from trainer.errors import EvidenceRow, TrainerError
from trainer.reporting.sinks.choice import StandaloneSinkConfig, start_sinks
from trainer.reporting.spool import SpoolWriter
from trainer.reporting.system_monitor import SystemMonitor
from trainer.resilience.assignment import Assignment, FolderConnection, HttpConnection
from trainer.resilience.failures import classify_exception
from trainer.resilience.hang import Hang
from trainer.resilience.memory import (
    load_micro_batch,
    out_of_memory,
    reduce_micro_batch,
    store_micro_batch,
)
from trainer.resilience.store_server import StoreAddress
from trainer.storage.base import Storage
from trainer.storage.cached import delete_abandoned, delete_cached

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0  # how long it waits for the output of its processes, and for a disk that refuses the last reports
DELIVERY_PATIENCE_SECONDS = 300.0  # how long the end of an attempt waits for the platform to acknowledge reports


@dataclass(frozen=True)
class NodeConfig:
    """The node's identity, the folders of its agent, and options of standalone runs.

    `cache`: folder shared by attempts, if there is one. `interruption_notice`: file or address that announces a spot
    interruption. `profile`: first and last step to trace.
    """

    work: Path
    cache: Path | None = None
    node: NodeIdentity = NodeIdentity()
    local_files: list[Path] = field(default_factory=list)
    profile: tuple[int, int] | None = None
    sinks: StandaloneSinkConfig = StandaloneSinkConfig()
    interruption_notice: str = ""


class Supervisor:
    """Call `run` once, from the main thread; `request_stop` from anywhere, signal handlers included."""

    def __init__(self, connection: HttpConnection | FolderConnection, platform: Platform, config: NodeConfig) -> None:
        self._connection, self._platform, self._config = connection, platform, config
        self._stamp = f"{time.time_ns():x}"
        spool = config.work / "spool"
        self._events = SpoolWriter(spool, "progress", f"agent{config.node.index}-{self._stamp}")
        self._logs = LogFollower(SpoolWriter(spool, "logs", f"agent{config.node.index}-{self._stamp}"))
        self._monitor = SystemMonitor.of_node(
            spool, f"agent{config.node.index}-{self._stamp}", config.node.name or "node", self._report_event
        )
        self._shipper = Shipper(spool, platform)
        self._stop: StopRequest | None = None
        self._stop_reported: StopRequest | None = None
        self._attempt_over = threading.Event()
        self._trained = threading.Event()
        self._ended = threading.Event()
        self._rendezvous = RendezvousClient(platform, config.node, self._is_stopping)
        self._was_spare = False
        self.worker_group: WorkerGroup | None = None
        self._preparer: DatasetPreparer | None = None
        self._upload: threading.Thread | None = None
        self._servers = NodeServers(config.node.address, self._logs.follow)
        self._profiles: ProfileUploader | None = None
        self._resumed: CheckpointManifest | None = None
        self._copies = NodeCopies(config.node)
        self._corrupted: tuple[int, int] | None = None
        self._evidence: tuple[int, Sequence[EvidenceRow]] | None = None  # first rank of this node then, rows

    def request_stop(self, stop: StopRequest | None) -> None:
        """Save a checkpoint and end the attempt. `stop` None: a signal requested it, not the platform."""
        self._stop = self._stop or stop or StopRequest.CANCEL
        self._stop_reported = self._stop_reported or stop

    def run(self) -> EndClass:
        """Run the attempt and return its end class, which the exit status carries.

        Never raises for a failing attempt.
        """
        try:
            run, keys = self._platform.run(), self._platform.keys()
        except TrainerError as error:
            logger.warning("%s", error)
            self._report_failed_start(error)
            return error.end_class
        self._logs.redact_values(keys.secrets.values())
        if self._config.node.index == 0:
            self._shipper.sinks = start_sinks(
                run, keys, self._identity(run), self._config.sinks, self._report_sink_event
            )
        self._shipper.start()
        self._monitor.start()
        self._servers.watch(partial(self._report_stopped_server, run), self._ended)
        threading.Thread(target=self._send_heartbeats, args=(run,), name="heartbeat", daemon=True).start()
        try:
            outcome = self._train(run, keys)
        except Exception as error:
            failure = classify_exception(error, rank=-1)
            if failure.end_class is EndClass.INTERNAL_ERROR:
                logger.exception("internal error in the agent")
            outcome = Outcome(failure.end_class, failure.message, self._last_step(run), {})
        self._copies.close()
        self._servers.kill_store()
        return self._report_end(run, keys, outcome)

    def _train(self, run: RunConfig, keys: DataKeys) -> Outcome:
        _, storage = self._connection.connect(run)
        begin = time.monotonic()
        cache = team_cache(self._config.cache, run) if self._config.cache else self._config.work / "datasets"
        if run.prepare is not None and run.prepare.report is not None:
            base = fetch_base_model(cache / "models", run, keys, storage)
            work, report = self._config.work, self._report_event
            report_on_data(run, keys, storage, self._platform, work, base, self._is_stopping, report)
            return Outcome(EndClass.COMPLETED, "", -1, {})
        base = fetch_base_model(cache / "models", run, keys, storage)
        if base is not None:
            self._report_event("phase.finished", phase="base_model", seconds=time.monotonic() - begin)
            begin = time.monotonic()
        if run.evaluation is not None and base is not None:
            sources, vocab_size = raw_sources(run, keys, base), run.tokenizer.vocab_size
        else:
            prepared = self._prepare(run, keys, storage, cache, base, begin)
            if isinstance(prepared, Outcome):
                return prepared
            sources, vocab_size = prepared, DatasetIndex.read(prepared[0].folder).vocab_size
        training = run.training
        assert training is not None, "what only prepares data has ended"
        self._profiles = ProfileUploader(run, Encryptor(keys.job), self._platform, storage, self._config.node.index)
        largest, outcome, restarts = None, None, 0
        if run.attempt_number > 1 or not isinstance(self._connection, HttpConnection):
            # A first attempt on the platform has no stored size, so it does not wait for an unreachable store.
            largest = load_micro_batch(storage, Encryptor(keys.job), run, vocab_size)
        while True:
            reply = self._join_round(run, vocab_size, outcome.message if outcome else "")
            if reply is None or reply.state == "over":
                was_stopped = reply is None and self._is_stopping()
                return self._outcome_without_training(run, reply) if outcome is None or was_stopped else outcome
            if run.layout.nodes > 1:  # all nodes resume from the same checkpoint
                run = run.model_copy(update={"resume": self._rendezvous.resume_of(reply, run.resume)})
            self._check_resume(run, keys)
            placed = run.placed_on(reply.num_nodes)
            outcome = self._run_worker_group(placed, training, keys, sources, base, reply, largest)
            if self._attempt_over.is_set():
                return outcome
            situation = self._situation(run, outcome, restarts)
            rung = choose_rung(situation)
            if rung is Rung.LEAVE:
                left = self._leave(run, outcome)
                if left is not None:
                    return left
                rung = choose_rung(replace(situation, has_spares=False, can_shrink=False))
            if rung is Rung.END:
                return outcome
            if rung is Rung.HALVE_MICRO_BATCH:
                tried, smaller = reduce_micro_batch(placed, vocab_size, largest, self._chosen_micro_batch())
                if smaller is None:
                    return replace(outcome, message=out_of_memory(outcome.message, tried))
                store_micro_batch(storage, Encryptor(keys.job), placed, vocab_size, smaller)
                self._report_event("memory.micro_batch_halved", before=tried, after=smaller, step=outcome.last_step)
                if placed.layout.nodes > 1:  # the other nodes' agents read the new size in the next attempt
                    message = f"{outcome.message}; the next attempt uses micro-batches of {smaller} sequences"
                    return replace(outcome, message=message)
                largest = smaller
            elif rung is Rung.DROP_COPIES:
                self._copies.drop()
            elif rung is Rung.SKIP_CHECKPOINT:
                assert run.resume is not None, "it was read"
                self._report_damaged(run.resume, outcome.message)
            elif rung is Rung.ROLL_BACK:
                rollback = self._roll_back(run, training, outcome)
                if rollback is None:
                    times = len(run.rollbacks)
                    before = f"; it had gone back to an earlier checkpoint {times} times before" if times else ""
                    return replace(outcome, message=outcome.message + before)
                outcome = replace(outcome, message=f"{outcome.message}; back to step {rollback.from_step}")
            elif rung is Rung.FOLLOW:
                grown = "a node has joined: the run continues on more nodes"
                other = "another node started a new rendezvous round"
                outcome = replace(outcome, message=grown if self._rendezvous.grows else other)
            elif rung is Rung.RESTART:
                restarts += 1
            self._logs.write_line(f"{outcome.end_class}: {outcome.message}; restarting the workers in place")
            self._report_restart(outcome)
            run = self._platform.run()  # `resume` names the newest durable checkpoint by now

    def _prepare(
        self, run: RunConfig, keys: DataKeys, storage: Storage, cache: Path, base: Path | None, begin: float
    ) -> list[PreparedSource] | Outcome:
        """Return the tokenised data sets, or the outcome of a job that only prepares them. `begin`: when it began."""
        preparer = self._preparer = DatasetPreparer(
            cache, run, keys, self._platform, storage, self._is_stopping, base, self._report_event,
            NodeProcesses(self._connection, self._config.node.index, self._servers, self._logs.follow),
        )  # fmt: skip
        preparer.fetch_or_prepare(self._config.local_files)
        self._report_event("phase.finished", phase="data", seconds=time.monotonic() - begin - preparer.seconds_waited)
        if run.training is None and self._config.node.index > 0:  # as a spare node, it only helped: the first reports
            self._was_spare = True
            return Outcome(EndClass.COMPLETED, "", -1, {})
        if run.training is None:
            return self._register_prepared(preparer)
        if preparer.newly_prepared and self._config.node.index == 0 and isinstance(self._connection, HttpConnection):
            self._store_datasets(preparer, run)
        return preparer.locations

    def _situation(self, run: RunConfig, outcome: Outcome, restarts: int) -> Situation:
        return Situation(
            outcome.end_class,
            restarts=restarts,
            max_restarts=run.max_restarts_in_place + run.expendable_nodes,
            is_round_outdated=self._rendezvous.is_round_outdated,
            was_copy_restored=self._copies.was_restored,
            has_checkpoint=run.resume is not None,
            has_spares=run.spare_nodes > 0,
            can_shrink=run.min_nodes is not None,
        )

    def _report_restart(self, outcome: Outcome) -> None:
        """Report that ranks restart within the attempt, and how those of this node ended."""
        self._report_event(
            "generation.started", generation=self._rendezvous.round, because=self._logs.redact(outcome.message),
            end_class=outcome.end_class, node=self._config.node.name, step=outcome.last_step,
        )  # fmt: skip

    def _leave(self, run: RunConfig, outcome: Outcome) -> Outcome | None:
        """Leave the run to the other nodes, and wait until the attempt is over. Return None immediately if they are too
        few."""
        because = self._logs.redact(outcome.message)
        if not self._rendezvous.leave(because):
            return None
        self._logs.write_line(f"{outcome.end_class}: {outcome.message}; the run continues without this node")
        self._report_restart(outcome)
        self._copies.close()
        self._rendezvous.wait_until_over(because)
        self._was_spare = True
        return Outcome(EndClass.COMPLETED, "", self._last_step(run), {})

    def _report_damaged(self, checkpoint: CheckpointManifest, because: str) -> None:
        """Report a checkpoint that cannot be read, so that the workers restart from an older one."""
        where = {"attempt_id": checkpoint.attempt_id, "generation": checkpoint.generation, "step": checkpoint.step}
        self._platform.report_damaged(DamagedCheckpoint(**where, because=self._logs.redact(because)[:2000]))
        self._resumed = None  # it may be followed by an older one

    def _roll_back(self, run: RunConfig, training: TrainingSpec, outcome: Outcome) -> Rollback | None:
        """Ask to go back to a checkpoint from before the loss diverged, and to leave out the data since then. None if
        there is none, or if the run may not go back again."""
        past, next_step = run.rollbacks, outcome.last_step + 1
        if len(past) >= training.rollback.max_rollbacks:
            return None
        last_good = next_step - DIVERGED_STEPS - ACCELERATOR_LAG
        if past and run.resume is not None and past[-1].from_step == run.resume.step:  # it diverged from there again
            last_good = min(last_good, run.resume.step - 1)
        if last_good <= 0:
            return None
        position = first_sequence(next_step, training.batch_size_schedule, past)
        because = self._logs.redact(outcome.message)[:2000]
        request = RollbackRequest(
            generation=self._rendezvous.round - 1, last_good_step=last_good, first_sequence=position, because=because
        )
        rollback = self._platform.roll_back(request)
        if rollback is not None:
            self._resumed = None  # it is followed by an older one
            self._copies.drop()
            if self._config.node.index == 0:
                before = first_sequence(rollback.from_step, training.batch_size_schedule, past)
                self._report_event(
                    "training.rolled_back", step=rollback.from_step, diverged_step=next_step,
                    sequences=position - before, because=because,
                )  # fmt: skip
        return rollback

    def _report_failed_start(self, error: TrainerError) -> None:
        """Report the error that prevented the start, so that the job's page shows it; the platform may refuse this."""
        if isinstance(error, AttemptOver) or error.end_class is EndClass.PLATFORM_UNREACHABLE:
            return
        node = self._config.node.index
        end = AttemptEnd(
            end_class=error.end_class, last_step=-1, message=str(error), node_rank=node, at=datetime.now(UTC)
        )
        with logged_errors("could not report the end of the attempt"):
            self._platform.end(end)

    def _check_resume(self, run: RunConfig, keys: DataKeys) -> None:
        """Raise TrainerError for a checkpoint that is not this job's, or older than the one this agent resumed from."""
        before, now = self._resumed, run.resume
        if now is not None:
            check_manifest(now, Encryptor(keys.job), job_id=run.job_id)
        if before is not None and (now is None or now.created_at < before.created_at):
            named = f"the older checkpoint of step {now.step}" if now is not None else "no checkpoint"
            raise TrainerError(
                EndClass.STORAGE_ERROR,
                f"this attempt resumed from the checkpoint of step {before.step}, but the platform now names {named}: "
                "its database was restored from an older backup; restore a newer one, or submit a new job",
            )
        self._resumed = now

    def _join_round(self, run: RunConfig, vocab_size: int, because: str) -> JoinReply | None:
        """Return the reply of the next round. `over`: the attempt has ended. None: stop, or the other nodes are
        missing.

        Round N starts the worker group with the restart count N - 1.
        """
        if self._is_stopping():
            return None
        port = self._servers.store_address(run.layout.world_size).port
        if run.layout.nodes == 1:
            return self._rendezvous.single_node_reply(port)
        begin = time.monotonic()
        reply = self._rendezvous.join_next_round(port, self._logs.redact(because))
        if reply is not None and reply.state == "placed" and reply.node_rank == 0:
            placed = run.placed_on(reply.num_nodes).layout
            sizes = plan_mesh(run.training, vocab_size, placed.world_size) if run.training else None
            if isinstance(sizes, MeshSizes):
                self._logs.write_line(format_mapping(reply, sizes, run.layout.processes_per_node))
            nodes = [node.name for node in reply.nodes]
            self._report_event("phase.finished", phase="nodes", seconds=time.monotonic() - begin)
            self._report_event("nodes.placed", round=reply.round, nodes=nodes, switches=max_neighbour_hops(reply))
            of = run.layout.nodes
            if placed.nodes > reply.grows_from > 0:
                before = reply.grows_from
                self._report_event("attempt.grown", round=reply.round, nodes=placed.nodes, of=of, before=before)
            elif placed.nodes < of:
                self._report_event("attempt.shrunk", round=reply.round, nodes=placed.nodes, of=of)
        return reply

    def _outcome_without_training(self, run: RunConfig, reply: JoinReply | None) -> Outcome:
        """Return the outcome of a node that never had ranks: stopped before training, or a spare until the end."""
        if reply is None:
            return Outcome(EndClass.STOPPED, "stopped before training began", self._last_step(run), {})
        self._was_spare = True
        return Outcome(EndClass.COMPLETED, "", self._last_step(run), {})

    def _identity(self, run: RunConfig) -> str:
        """Return a name of the run that is the same in all attempts."""
        return str(self._connection.output) if isinstance(self._connection, FolderConnection) else run.job_id

    def _is_stopping(self) -> bool:
        return self._stop is not None or self._attempt_over.is_set()

    def _register_prepared(self, preparer: DatasetPreparer) -> Outcome:
        """Upload and register newly prepared data sets, as the last part of a job that only prepares data."""
        begin = time.monotonic()
        waited = preparer.seconds_waited
        preparer.upload()
        begin += preparer.seconds_waited - waited
        self._report_event("phase.finished", phase="upload", seconds=time.monotonic() - begin)
        for location in preparer.locations:
            index = DatasetIndex.read(location.folder)
            self._report_event(
                "dataset.prepared", source=location.name, documents=index.documents, train_tokens=index.train_tokens,
                validation_tokens=index.validation_tokens, shards=sum(map(len, index.shards.values())),
                vocab_size=index.vocab_size,
            )  # fmt: skip
        return Outcome(EndClass.COMPLETED, "", -1, {})

    def _run_worker_group(
        self,
        run: RunConfig,
        training: TrainingSpec,
        keys: DataKeys,
        sources: list[PreparedSource],
        base: Path | None,
        reply: JoinReply,
        largest_micro_batch: int | None,
    ) -> Outcome:
        first, local_ranks = reply.node_rank * run.layout.processes_per_node, range(run.layout.processes_per_node)
        shadows = [self._copies.shadow_of(run, local_rank, first + local_rank) for local_rank in local_ranks]
        peers = self._copies.peers(run, keys.job, reply)
        model_folder = None
        if isinstance(self._connection, FolderConnection):
            model_folder = self._connection.output / "model"
        assignments = [
            Assignment(
                run=run,
                training=training,
                job_key=keys.job,
                connection=self._connection,
                restart_count=reply.round - 1,
                rank=first + local_rank,
                local_rank=local_rank,
                store=StoreAddress(reply.store_host, reply.store_port),
                sources=sources,
                work=self._config.work,
                stamp=self._stamp,
                model_folder=model_folder,
                base_folder=base,
                secrets=keys.secrets,
                replayed_key=keys.replayed,
                largest_micro_batch=largest_micro_batch,
                profile=self._config.profile,
                node=self._config.node.name,
                shadow=shadows[local_rank],
                peers=peers,
                corrupted=self._corrupted,
                evidence=self._evidence and (self._evidence[0] + local_rank, self._evidence[1]),
                spare_nodes=reply.spares,
            )
            for local_rank in local_ranks
        ]
        self.worker_group = WorkerGroup(assignments, self._logs, self._report_stall)
        if self._profiles is not None:
            self._profiles.worker_group = self.worker_group
        outcome = self.worker_group.watch(
            lambda: self._check_deadline(run.deadline),
            lambda: self._attempt_over.is_set() or self._rendezvous.is_round_outdated,
            lambda: reply.node_rank == 0 and self._servers.has_lost_store,
        )
        if outcome.corrupted_step is not None:
            self._corrupted = outcome.corrupted_step, reply.round - 1
            self._evidence = (first, outcome.evidence) if outcome.evidence else None
        if self.worker_group.has_lost_fork_server:
            self._servers.kill_store()  # it ends with the fork server, but may not have yet
        return outcome

    def _chosen_micro_batch(self) -> int | None:
        assert self.worker_group is not None, "called after a worker group has ended"
        return self.worker_group.shared_status.micro_batch()

    @staticmethod
    def _last_step(run: RunConfig) -> int:
        """Return the last step of earlier attempts, -1 if there is none; used if this one has finished no step."""
        return run.resume.step if run.resume is not None else -1

    def _check_deadline(self, deadline: datetime | None) -> StopRequest | None:
        if self._stop is None and deadline is not None and datetime.now(UTC) >= deadline:
            self.request_stop(StopRequest.DEADLINE)
        return self._stop

    def _store_datasets(self, preparer: DatasetPreparer, run: RunConfig) -> None:
        """Store newly prepared data sets: now, if other nodes of this attempt wait for them, else while it trains."""
        if run.layout.nodes + run.spare_nodes > 1:
            preparer.upload()
            return
        self._upload = threading.Thread(target=self._upload_datasets, args=(preparer,), daemon=True)
        self._upload.start()

    def _upload_datasets(self, preparer: DatasetPreparer) -> None:
        try:
            preparer.upload(self._trained.is_set)
        except TrainerError as error:
            # This run does not need the stored data set; a later attempt would prepare it again.
            self._logs.write_line(f"could not store the prepared data set: {error}")

    def _report_stall(self, stall: Stall) -> None:
        """Report ranks that make no progress, and write what each is doing to the log."""
        for line in stall.log_lines:
            self._logs.write_line(line)
        self._report_event(
            "progress.stalled", node=self._config.node.name, phase=stall.phase, step=stall.step, seconds=stall.seconds,
            ranks=stall.hang.ranks, because=self._logs.redact(stall.hang.because), is_hang=stall.is_hang,
        )  # fmt: skip

    def _report_stopped_server(self, run: RunConfig, name: str, seconds: float) -> None:
        step, phase, _ = self._progress(run)
        ranks: list[int] = []
        if self.worker_group is not None:
            ranks = self.worker_group.ranks
            seconds = min(seconds, self.worker_group.idle_seconds())  # they train on until they need the server
        hang = Hang(ranks, f"the {name} is stopped (SIGSTOP, or a debugger)", is_certain=True)
        self._report_stall(Stall(hang, True, phase, step, seconds, [hang.because]))

    def _progress(self, run: RunConfig) -> tuple[int, str, int]:
        """Return (last finished step, phase, number of running processes of the worker group)."""
        if self.worker_group is not None:
            return self.worker_group.progress()
        # A job that only prepares data reports step 0: it has no start-up.
        is_waiting = self._preparer is not None and self._preparer.is_waiting
        return (0 if run.prepare else -1, WAIT_FOR_DATA if is_waiting else "data", 0)

    def _report_event(self, kind: str, **data: object) -> None:
        rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in data.items()}
        self._events.add(ProgressEvent(time=datetime.now(UTC), type=kind, data=rounded))
        self._events.flush()

    def _report_sink_event(self, kind: str, **data: object) -> None:
        """Report an event of a sink, with secrets redacted: a package's error may quote its credentials."""
        redacted = {name: self._logs.redact(value) if isinstance(value, str) else value for name, value in data.items()}
        self._report_event(kind, **redacted)

    def _send_heartbeats(self, run: RunConfig) -> None:
        while True:
            step, phase, alive = self._progress(run)
            try:
                beat = Heartbeat(
                    node_rank=self._config.node.index, generation=max(self._rendezvous.round - 1, 0), phase=phase,
                    step=step, processes_alive=alive,
                    interruption=read_interruption_notice(self._config.interruption_notice),
                )  # fmt: skip
                reply = self._platform.heartbeat(beat)
            except AttemptOver:
                self._attempt_over.set()
                return
            except (httpx.HTTPError, OSError) as error:  # OSError: too many files are open
                logger.warning("heartbeat failed: %s", error)  # training continues while the platform is unreachable
            else:
                self._rendezvous.requested_round, self._rendezvous.grows = reply.round, reply.grows
                if reply.stop is not None:
                    self.request_stop(reply.stop)
                if reply.profile is not None and self._profiles is not None:
                    self._profiles.request_profile(reply.profile)
            if self._shipper.attempt_over is not None:
                self._attempt_over.set()
            if self._ended.wait(run.heartbeat_seconds):
                return

    def _report_end(self, run: RunConfig, keys: DataKeys, outcome: Outcome) -> EndClass:
        """Deliver all reports, then the end marker and the end of the attempt. Return the end class."""
        if outcome.end_class not in (EndClass.COMPLETED, EndClass.STOPPED):
            self._logs.write_line(f"{outcome.end_class}: {outcome.message}")
        self._monitor.stop(DRAIN_SECONDS)
        self._logs.drain(DRAIN_SECONDS)
        self._events.flush_within(DRAIN_SECONDS)
        end = AttemptEnd(
            end_class=outcome.end_class,
            last_step=outcome.last_step,
            message=self._logs.redact(outcome.message),
            node_rank=self._config.node.index,
            exit_codes=outcome.exit_codes,
            stopped_for=self._stop_reported if outcome.end_class is EndClass.STOPPED else None,
            at=datetime.now(UTC),
        )
        if isinstance(self._connection, HttpConnection) and self._connection.checkpoint_cache is not None:
            # Checkpoints that another attempt may resume from stay in the cache.
            if outcome.end_class is EndClass.COMPLETED:
                delete_cached(self._connection.checkpoint_cache / run.job_id)
            delete_abandoned(self._connection.checkpoint_cache)
        if self._attempt_over.is_set():
            self._ended.set()
            return outcome.end_class
        self._trained.set()
        if self._upload is not None:
            self._upload.join(DELIVERY_PATIENCE_SECONDS)
        if self._profiles is not None:
            self._profiles.finish(DELIVERY_PATIENCE_SECONDS)
        if not self._shipper.finish(DELIVERY_PATIENCE_SECONDS):
            logger.error("the platform did not acknowledge all reports within %.0f s", DELIVERY_PATIENCE_SECONDS)
        self._shipper.finish_sinks(outcome.end_class)
        is_first = self._rendezvous.reply is None or self._rendezvous.reply.node_rank == 0
        if is_first and not self._was_spare:
            with logged_errors("could not store the end of the attempt"):
                self._put_end_marker(run, keys, end)
        if not self._was_spare:
            with logged_errors("could not report the end of the attempt"):
                self._platform.end(end)
        self._ended.set()
        return outcome.end_class

    def _put_end_marker(self, run: RunConfig, keys: DataKeys, end: AttemptEnd) -> None:
        _, storage = self._connection.connect(run)
        key = f"{run.prefix}attempts/{run.attempt_number}/end.json"
        ciphertext, _ = Encryptor(keys.job).encrypt(end.model_dump_json().encode(), key)
        storage.put(key, ciphertext)
