"""How to run an attempt somewhere: five calls and declared capabilities. No Django, no database, no product rules.

May import: core.errors, trainer.contract.environment. `backends.<x>` never imports `backends.<y>`; add one by a
folder here and a line in `registry.py`.
"""
