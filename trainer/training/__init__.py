"""One rank's training: build the model and its state, run the loop, evaluate, export.

May import: torch and everything below the agent. The agent starts it in worker processes (`worker.work`).
"""
