"""Durable state: every rank's shards first, the manifest last. What no manifest names does not exist.

May import: torch, `trainer.contract`, `trainer.storage`, `trainer.parallel`, `trainer.optim`.
"""
