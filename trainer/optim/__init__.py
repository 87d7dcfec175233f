"""Parameter updates: decay groups, schedule, clipping and the skip of poisoned steps. May import torch and contract."""
