"""Makes reality match the record: submit, observe, cancel, finalise.

May import: jobs, artifacts, telemetry and below. Never calls a backend or storage inside a transaction. `plan` and
`recovery` are pure. Invariants: at most one live backend job per attempt; none is forgotten; an end is believed only
when the backend confirmed it; not knowing never ends a job.
"""
