"""Parameter updates: decay groups, schedule, clipping and the skip of poisoned steps. May import torch,
`trainer.contract` and `trainer.parallel`."""
