"""The distributed trainer: agent, workers, and the contract with the platform."""
