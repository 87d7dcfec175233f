"""May this start now, and if not, why.

May import: artifacts, budgets, quotas, jobs and below. `policy` and what it is made of are pure: a snapshot in,
decisions out. Admission is serialised by the organisation's row lock; what is used is always counted from the rows of
live jobs, never kept as a counter that could drift.
"""
