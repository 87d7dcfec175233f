"""Processes and their deaths: warm fork server, rendezvous store, generations of workers, causes of failure.

May import: the standard library, numpy, `trainer.contract`, `trainer.errors`. Torch only inside processes that the
fork server has started, since the agent imports this package too.
"""
