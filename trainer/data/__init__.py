"""From text to batches: documents -> tokenizer -> shards -> sampler -> loader.

May import: `trainer.contract`, `trainer.errors`, numpy, tokenizers; only `loader` imports torch, since the
agent, which prepares the data, must stay free of it. The order of the data is arithmetic, never state.
"""
