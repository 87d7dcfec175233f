"""Mechanisms without domain logic: errors, ids, leases, task triggers, encryption, row-level security, logging.

May import: Django (not `errors`, `ids`), trainer.contract. Must never import another athanor package.
"""
