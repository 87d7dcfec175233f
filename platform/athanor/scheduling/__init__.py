"""Admission: decide which queued jobs start now, and why the others wait.

May import: artifacts, budgets, quotas, jobs and below. `policy` and what it is made of are pure: a snapshot in,
decisions out. Admission is serialised by the organisation's row lock; usage is always counted from the rows of live
jobs, never stored in a counter that could drift.
"""
