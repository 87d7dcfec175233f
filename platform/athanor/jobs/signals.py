"""What layers above must do whenever a job moves, whoever moves it."""

from django.dispatch import Signal

# Sent by transitions.move in its transaction, under the job's row lock: `job`, `source` and `to` (JobStatus).
moved = Signal()
