"""The record: jobs, attempts, events, and the only code that changes a status.

May import: accounts, clusters, specs, core. Must never call a backend or storage. Invariants: a status changes only
along the table in `states`, with its reason and event in one transaction (`transitions`); events are gapless per job.
"""
