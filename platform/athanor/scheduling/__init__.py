"""May this start now, and if not, why.

May import: jobs and below. `policy` is pure: a snapshot in, decisions out. Admission is serialised by the pools' row
locks; what is used is always counted from the rows of live jobs, never kept as a counter that could drift.
"""
