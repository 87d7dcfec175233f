"""Backends: how to run an attempt on a kind of cluster, as five calls and declared capabilities.

No Django, no database, no product rules. May import: core.errors, trainer.contract.environment. `backends.<x>` never
imports `backends.<y>`; a new one is a folder here and a line in `registry.py` (docs/backends.md).
"""
