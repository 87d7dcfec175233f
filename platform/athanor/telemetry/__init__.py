"""What runs report: metric series, logs, heartbeats, progress.

May import: jobs and below. Invariants: a batch is stored once even if the sender repeats it; a series or log is stored
in chunks, never one row per point; a later worker group or attempt rewinds the curve instead of drawing over it.
"""
