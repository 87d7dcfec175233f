"""The API for compute nodes, authenticated by an attempt's token. Its types are in trainer.contract.run."""
