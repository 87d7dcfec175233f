"""Send metrics to MLflow and TensorBoard.

The agent, or under torchrun the first rank, passes on delivered metrics. Each sink has its own thread, so a slow tool
delays no training step.

May import: the standard library, `trainer.contract`; the tools' packages, which are optional, only inside functions.
"""
