"""Reconcilers: the periodic tasks that finish every job, their intervals and invariants, and their backlog.

May import: fleet, compliance, dispatch, scheduling and below. Known to api and workers. Invariant: nothing here decides
anything about a job; the work is in the package that owns the rows.
"""
