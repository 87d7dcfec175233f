"""The event types that a compute node may put on its job's timeline, with the fields of their `data`.

The platform drops every other type that an attempt's token sends: the types in `athanor.jobs.event_types` are the
platform's own, and webhooks sign them. A type that the trainer emits must be listed here;
`tests/trainer/test_event_types.py` fails for one that is not, and for fields that differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class EventType:
    """What an event reports. `fields`: the meaning of each field of its `data`."""

    meaning: str
    fields: Mapping[str, str]


_STEP = "Completed steps, 1 after the first step."
_BECAUSE = "The cause, as text."
_STEP_DETAILS = {
    "layers": "The three layers with the largest shares of the squared norm of the gradient, as text; or those where "
    "it is not finite, from the head to the embedding.",
    "first_sequence": "Number of the step's first sequence in the order of the run's data, from 0.",
    "last_sequence": "Number of its last one.",
    "worst_batch": "The highest mean loss of a micro-batch, and the source, shard and row of its sequences, as text.",
}

WAIT_FOR_DATA = "wait_for_data"
"""The phase in which another job prepares the data that this one needs."""

STEPS_RESOLVED = "steps.resolved"
PROGRESS_STALLED = "progress.stalled"
GENERATION_STARTED = "generation.started"
CHECKPOINT_INTERVAL = "checkpoint.interval"
PREFLIGHT_COMPLETED = "preflight.completed"
GPU_ECC_UNCORRECTED = "gpu.ecc_uncorrected"
GRADIENT_CORRUPTED = "gradient.corrupted"
REPLICAS_COMPARED = "replicas.compared"
NODES_PLACED = "nodes.placed"
ATTEMPT_GROWN = "attempt.grown"
SOFTWARE_FOUND = "software.found"

AGENT_EVENTS: Mapping[str, EventType] = {
    CHECKPOINT_INTERVAL: EventType(
        "`checkpoint.every_minutes` `auto` has chosen the longest time between checkpoints, or changed it by more than "
        "20 %.",
        {
            "minutes": "Longest time between checkpoints from now on, in minutes.",
            "stall_seconds": "Time that training waits while a save copies the state, in seconds; median of saves.",
            "slowdown_seconds": "Time that steps take longer while a save is written, in seconds; median of saves.",
            "mean_hours_between_failures": "Estimated mean time between failures of the job, in hours.",
        },
    ),
    "checkpoint.saved": EventType(
        "A checkpoint is complete in the object store.",
        {
            "step": "Steps done at the checkpoint.",
            "seconds": "Time to write it, in seconds; training continues meanwhile, except after the last step.",
            "blocked_seconds": "Time that training waited for it before, in seconds.",
            "final": "Whether training ended with it, after its last step or a request to stop.",
            "bytes": "Its size, in bytes.",
        },
    ),
    "compile.partial": EventType(
        "Some blocks of the model are not compiled though `compile` is set.",
        {"blocks": "Number of these blocks.", "of": "Blocks of the model.", "because": "The cause, as text."},
    ),
    "checkpoint.restored": EventType(
        "The workers continue from a checkpoint.",
        {
            "step": "Steps done at that checkpoint.",
            "tier": "`shadow`: copies in the memory of the ranks' own nodes. `peer`: some of them in that of other "
            "nodes, or all of another number of ranks, held by the agents. `stored`: the object store.",
            "seconds": "Time to read it, in seconds.",
            "ranks": "The ranks that fetched their copy, or parts of others', from an agent, as text; else empty.",
        },
    ),
    "cuda_graphs.unused": EventType(
        "`cuda_graphs` has no effect on the device of this run.",
        {"because": _BECAUSE},
    ),
    "data.shard_skipped": EventType(
        "A damaged shard of data was skipped, as `on_corrupt` allows. Once per node and shard.",
        {"source": "The source of the data.", "shard": "Name of the shard.", "because": "What is wrong with it."},
    ),
    "dataset.prepared": EventType(
        "A job that only prepares data has stored one source.",
        {
            "source": "The source of the data.",
            "documents": "Number of documents.",
            "train_tokens": "Tokens to train on.",
            "validation_tokens": "Tokens held out.",
            "shards": "Number of shards.",
            "vocab_size": "Entries of the vocabulary.",
        },
    ),
    "dataset.waiting": EventType(
        "Another job prepares the same data, and this one waits for it.",
        {"source": "The source of the data.", "job": "Id of the job that prepares it."},
    ),
    "evaluation": EventType(
        "The model was evaluated on held-out data.",
        {
            "step": "Steps done; 0 before the first.",
            "loss": "Mean loss per token over all data sets.",
            "seconds": "Time of the evaluation, in seconds.",
        },
    ),
    "evaluation.sample": EventType(
        "The model continued one of `evaluation.prompts`.",
        {"step": "Steps done; 0 before the first.", "prompt": "The prompt.", "text": "The generated text."},
    ),
    "evaluation.task": EventType(
        "A task of an evaluation job was computed.",
        {
            "name": "Name of the task.",
            "n": "Number of documents, questions or prompts.",
            "tokens": "Number of tokens that count, or were generated.",
            "values": "Metrics by name.",
            "seconds": "Time of the computation, in seconds.",
        },
    ),
    "export.best": EventType(
        "The model is exported from the checkpoint with the lowest loss on held-out data (`checkpoint.keep_best`).",
        {"step": "Steps done at that checkpoint.", "loss": "That loss."},
    ),
    "export.finished": EventType(
        "The trained model was exported.",
        {"seconds": "Time of the export, in seconds."},
    ),
    "generation.started": EventType(
        "The worker processes restart in place, within the same attempt.",
        {
            "generation": "Number of the new group of workers; the first is 0.",
            "because": _BECAUSE,
            "end_class": "How the processes before ended on this node, such as `process_killed` or `hang`.",
            "node": "Name of the node.",
            "step": "Last completed step, -1 if there was none.",
        },
    ),
    GRADIENT_CORRUPTED: EventType(
        "A step with an unusual loss or gradient norm gave a different result when it was computed again from the same "
        "parameters and data, so a device computed it incorrectly. Either the same ranks computed something else the "
        "second time, which was then used, and the run continues; or other ranks did, and the nodes of those that were "
        "wrong leave the run. The node gets an incident.",
        {
            "step": "Completed steps, as text.",
            "ranks": "Ranks that had a different gradient before the sum over ranks, as text; empty if unknown.",
            "node": "Name of the node of these ranks; empty if they are on several nodes or unknown.",
            "because": "The norms of all computations by rank, as text.",
        },
    ),
    "gradient.large": EventType(
        "The norm of the gradient was above the limits of `optimizer.gradient_watch`. Once until it is below again.",
        {"step": _STEP, "norm": "The norm, before clipping.", "because": _BECAUSE, **_STEP_DETAILS},
    ),
    GPU_ECC_UNCORRECTED: EventType(
        "The memory of a GPU had errors that ECC could not correct. The node gets an incident; the run continues if it "
        "can.",
        {
            "node": "Name of the node.",
            "gpu": "Number of the GPU on the node, from 0.",
            "errors": "Number of new errors.",
            "total": "Number of errors since the driver was loaded.",
            "since": "Time of the last sample without the new ones.",
            "because": _BECAUSE,
        },
    ),
    "gpu.throttled": EventType(
        "The clocks of a GPU have been held down by heat or a fault for three samples, about half a minute. Once until "
        "they no longer are. A GPU at its power limit is not reported.",
        {
            "node": "Name of the node.",
            "gpu": "Number of the GPU on the node, from 0.",
            "because": "What holds the clocks down, as NVML reports it.",
            "since": "Time of the first such sample.",
            "megahertz": "Its clock (SM) now, in MHz.",
        },
    ),
    "loss.large": EventType(
        "The loss was above the limit of `rollback.loss_sigma`. Once until it is below again.",
        {"step": _STEP, "loss": "The loss.", "limit": "The limit.", **_STEP_DETAILS},
    ),
    "memory.micro_batch_halved": EventType(
        "Memory ran out, and the workers restart with smaller micro-batches.",
        {
            "before": "Sequences of a micro-batch before.",
            "after": "Sequences of a micro-batch now.",
            "step": "Last completed step; -1 before the first.",
        },
    ),
    "attempt.shrunk": EventType(
        "The run continues on fewer nodes than it asked for, with the same batches.",
        {
            "round": "Number of the rendezvous round, from 1.",
            "nodes": "Number of nodes with ranks.",
            "of": "Number of nodes that the job asked for.",
        },
    ),
    ATTEMPT_GROWN: EventType(
        "The run continues on more nodes than before, with the same batches: a node has joined that was lost before.",
        {
            "round": "Number of the rendezvous round, from 1.",
            "nodes": "Number of nodes with ranks.",
            "of": "Number of nodes that the job asked for.",
            "before": "Number of nodes with ranks before.",
        },
    ),
    NODES_PLACED: EventType(
        "The nodes of a multi-node run were assigned their ranks.",
        {
            "round": "Number of the rendezvous round, from 1.",
            "nodes": "Names of the nodes, in the order of their ranks.",
            "switches": "Largest number of switches between two nodes with consecutive ranks.",
        },
    ),
    "phase.finished": EventType(
        "A phase of the start-up ended.",
        {"phase": "Name of the phase.", "seconds": "Its duration, in seconds."},
    ),
    "precision.slow": EventType(
        "The run computes in fp32 on a GPU, which is slow.",
        {"because": _BECAUSE},
    ),
    PREFLIGHT_COMPLETED: EventType(
        "Devices, network and storage were measured before the first step (`preflight`).",
        {
            "result": "`ok`, `slow` or `broken`: the worst finding.",
            "seconds": "How long it took, in seconds.",
            "report": "The figures and findings, as `GET /jobs/{job_id}/preflight` returns them.",
        },
    ),
    "progress.stalled": EventType(
        "Ranks of a node have made no progress for longer than usual. The log has the stack of each.",
        {
            "node": "Name of the node.",
            "phase": "The phase that they are in.",
            "step": "The last finished step, -1 before the first.",
            "seconds": "Since their last progress.",
            "ranks": "The ranks that hold up the others; empty if all of the node wait for other ranks.",
            "because": "What these ranks are doing, as text.",
            "is_hang": "Whether the ranks of the node are restarted: nothing that may take long explains it.",
        },
    ),
    "replay.segment": EventType(
        "A segment of a finished job was computed again, and compared with the stored checkpoint.",
        {
            "number": "Number of the segment, from 0.",
            "first_step": "Steps done at its start.",
            "last_step": "Steps done at its end.",
            "verdict": "`equal`, `within_tolerance`, `differs` or `not_comparable`.",
            "because": _BECAUSE,
            "seconds": "Time of the replay, in seconds.",
        },
    ),
    REPLICAS_COMPARED: EventType(
        "Replicas differed without a majority, the run went back and took the same steps again: the rank that first "
        "computed something else before was wrong. Its node gets an incident.",
        {
            "step": "The step with the first difference, 1 for the first.",
            "ranks": "The ranks that were wrong, as text; empty if all differ, so that none can be named.",
            "node": "Name of the node that the reporting rank was on then and is on now; empty if they differ.",
            "because": "What was found, as text.",
        },
    ),
    "replicas.differ": EventType(
        "Ranks that must have the same parameters differ: a bit has flipped in one of them. The workers restart from "
        "the newest state that was compared. If that differs again within 64 steps, the run continues: a device has a "
        "lasting fault, or rounds differently. Once until they agree again.",
        {
            "step": "Completed steps, as text.",
            "ranks": "The ranks that differ from the majority, all of them if there is none, as text.",
            "replicas": "All ranks that must have the same parameters, as text.",
        },
    ),
    "replica.failed": EventType(
        "A rank cannot send its copies to another node. It tries again; reported once until it succeeds.",
        {"step": "Steps done at that copy.", "rank": "The rank.", "because": _BECAUSE},
    ),
    "replica.unused": EventType(
        "Shadow checkpoints are not sent to other nodes, though the run has spare nodes.",
        {"rank": "The first rank that cannot send them.", "because": _BECAUSE},
    ),
    "training.rolled_back": EventType(
        "The loss diverged, and the run goes back to an earlier checkpoint and continues with other data.",
        {
            "step": "Steps done at that checkpoint.",
            "diverged_step": "The step at which it was certain that the loss had diverged.",
            "sequences": "Training sequences that were seen since that checkpoint, and are now left out.",
            "because": _BECAUSE,
        },
    ),
    "rank.slow": EventType(
        "One rank took more than 1.5 times as long as the median: in 20 steps in a row, or in 3 measured steps in a "
        "row where ranks wait for each other within the passes (`time/rank_skew`).",
        {
            "step": _STEP,
            "rank": "The rank.",
            "times_the_median": "Its time as a multiple of the median of all ranks.",
            "times_the_mean": "Its time as a multiple of their mean.",
        },
    ),
    "sequence.longer": EventType(
        "The sequences are longer than those that the base model knows.",
        {
            "sequence_length": "Tokens of a training sequence.",
            "base_length": "Positions that the base model knows (`max_position_embeddings`).",
            "because": _BECAUSE,
        },
    ),
    "settings.resolved": EventType(
        "The workers have chosen the values of settings that depend on their devices.",
        {
            "device": "Type of the devices: `cpu` or `cuda`.",
            "precision": "Number format of the forward and backward pass.",
            "deterministic": "Whether operations whose results depend on timing are refused.",
            "attention": "Kernels of attention: `flash`, `cudnn`, `efficient`, or `math` (plain matrix products).",
            "compile": "Whether blocks of the model are compiled.",
            "micro_batch_sequences": "Sequences of a micro-batch of a full step.",
        },
    ),
    "shadow.skipped": EventType(
        "A shadow checkpoint is not used. Once for each step, with the first rank that has no usable copy of it, "
        "neither in its own memory nor in that of another node; of another number of ranks, with the rank that made "
        "the unusable copy, or that lacks a part.",
        {"step": "Steps done at that checkpoint.", "rank": "The rank.", "because": _BECAUSE},
    ),
    "shadow.unused": EventType(
        "No shadow checkpoints are made.",
        {"rank": "The first rank that cannot make them.", "because": _BECAUSE},
    ),
    "sink.failed": EventType(
        "A metric sink, such as MLflow, failed. Reported once per sink.",
        {"sink": "Name of the sink.", "because": "The error of its client."},
    ),
    "sink.incomplete": EventType(
        "Points were dropped because a metric sink was too slow or unreachable.",
        {"sink": "Name of the sink.", "points_lost": "Number of points that were dropped."},
    ),
    SOFTWARE_FOUND: EventType(
        "The versions of the programs that this attempt runs, the same on all its nodes.",
        {
            "trainer": "Version of Athanor.",
            "trainer_sha256": "SHA-256 of the trainer's source, as hexadecimal.",
            "python": "Version of Python.",
            "torch": "Version of PyTorch.",
            "cuda": "Version of CUDA, or of HIP; empty without a GPU.",
            "nccl": "Version of NCCL; empty without a GPU.",
            "driver_branch": "Branch of NVIDIA's driver, such as `570`; empty if it is not known.",
        },
    ),
    "step.recomputed": EventType(
        "A step with an unusual loss or norm of the gradient had the same result when it was computed again, by other "
        "ranks too if there are some: nothing was corrupted. Other events report what followed from it. At most once "
        "in 64 steps.",
        {"step": _STEP, "because": "What was unusual, as text."},
    ),
    "step.skipped": EventType(
        "A step changed no weights, because its loss or gradient was not finite, or its gradient was an outlier.",
        {"step": _STEP, "because": _BECAUSE, **_STEP_DETAILS},
    ),
    STEPS_RESOLVED: EventType(
        "The steps that `training.epochs` takes are known.",
        {
            "steps": "Steps of the run.",
            "warmup_steps": "Steps of its warm-up.",
            "epochs": "Passes over the data, from the spec.",
            "sequences": "Sequences of the training data.",
        },
    ),
    "training.started": EventType(
        "The worker processes are ready for their first step.",
        {"step": "Steps done at the checkpoint that training resumes from, 0 without one."},
    ),
    "training.ended_early": EventType(
        "Training ended before its last step: the loss on held-out data became no lower (`evaluation.patience`).",
        {
            "step": "Steps done.",
            "best_step": "Steps done at the evaluation with the lowest loss.",
            "best_loss": "That loss.",
            "patience": "Number of evaluations since, as `evaluation.patience` says.",
        },
    ),
    "tokenizer.smaller": EventType(
        "The trained tokenizer has fewer entries than `vocab_size` asked for, and so has the model.",
        {"asked": "Entries asked for.", "made": "Entries that there are.", "because": _BECAUSE},
    ),
    "tensor_overlap.unused": EventType(
        "`tensor_overlap` has no effect on the devices of this run.",
        {"because": _BECAUSE},
    ),
}
AGENT_EVENT_TYPES = frozenset(AGENT_EVENTS)
