"""The event types that a compute node may put on its job's timeline.

The platform drops every other type that an attempt's token sends: `job.*`, `budget.*`, `checkpoint.registered`,
`artifact.*` and `profile.*` are the platform's own words, and webhooks sign them. A type that the trainer emits must be
listed here; `tests/trainer/test_event_types.py` fails for one that is not.
"""

AGENT_EVENT_TYPES = frozenset({
    "checkpoint.saved",
    "cuda_graphs.unused",
    "data.shard_skipped",
    "dataset.prepared",
    "evaluation",
    "evaluation.sample",
    "export.finished",
    "generation.started",
    "memory.micro_batch_halved",
    "nodes.placed",
    "phase.finished",
    "rank.slow",
    "sink.failed",
    "sink.incomplete",
    "step.skipped",
    "tensor_overlap.unused",
})  # fmt: skip
