"""What runs say while they run: metric series, logs, heartbeats, progress.

May import: jobs and below. Invariants: a batch is stored once whatever the sender repeats; a series or log is kept in
chunks as they came, never a row per point; a later generation or attempt rewinds the curve instead of drawing over it.
"""
