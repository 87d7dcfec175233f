"""What an attempt's agent and trainer may do, with the attempt's token: the wire types are in trainer.contract.run."""
