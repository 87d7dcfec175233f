"""The platform as a node sees it: the interface, its REST client, and a local folder for standalone runs.

May import: `trainer.contract`, `trainer.errors`, `trainer.storage`. Never torch: the agent uses it too.
"""
