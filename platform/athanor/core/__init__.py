"""Mechanisms without business words: errors, clock, ids, leases, wake-ups, encryption, logging.

May import: Django (not `errors`, `ids`), trainer.contract. Must never import another athanor package.
"""
