"""The signal that lets higher layers act in the transaction of every job transition."""

from django.dispatch import Signal

# Sent by transitions.py for every transition, in its transaction and under the job's row lock, after the job is saved:
# `job`, `source` and `to` (JobStatus). `spec` and `resolved_spec` of a job may be deferred: reading them costs a query.
moved = Signal()
