"""Simulate recovery: what failures and checkpoints cost a run, in virtual time, for numbers of GPUs that nobody lends.

Rungs, intervals and tiers are chosen by the code that runs choose by (`trainer.agent.ladder`,
`trainer.contract.checkpoint_interval`). Pure: it reads no clock, file or device. May import contract, resilience and
agent; never torch. The admission simulator (`athanor simulate`) is separate: it simulates queues and quotas.
"""
