"""How long the ranks of a run wait for one another before they end, by phase."""

from datetime import timedelta

STARTUP_TIMEOUT = timedelta(minutes=30)
"""From the rendezvous of the ranks to the end of the first step. Ranks read data and checkpoints, compile and connect
at different speeds."""
TRAINING_TIMEOUT = timedelta(minutes=10)
"""In training, evaluations included: all other ranks are idle while they wait for one that hangs."""
EXPORT_TIMEOUT = timedelta(minutes=30)
"""During the export, in which one rank converts and stores what the others send it."""
CHECKPOINT_TIMEOUT = timedelta(minutes=30)
"""Of a save on one rank, from the copy of the state until training continues, or at the end until all is stored."""
HANG_SECONDS = 30.0
"""A rank that waits without progress for this long, and for HANG_STEPS times the longest of its recent steps, hangs:
the agent reports what all ranks of its node are doing, and restarts them."""
HANG_STEPS = 5.0
AGENT_TIMEOUT = timedelta(minutes=5)
"""How long an agent may not look at its ranks, which it does five times a second, before they kill it."""
