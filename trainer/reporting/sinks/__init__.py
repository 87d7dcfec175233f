"""Metrics for others' tools: MLflow, TensorBoard. Fed from what was delivered: by the agent, or under torchrun by
the first rank; a thread of their own waits for the tool, never a step.

May import: the standard library, `trainer.contract`; the tools' packages only inside functions, since they are extras.
"""
