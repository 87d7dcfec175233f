"""The data pipeline: documents -> tokenizer -> shards -> source (cache, packing, sampler) -> corpus -> loader.

May import: `trainer.contract`, `trainer.errors`, `trainer.storage`, numpy, tokenizers, pyarrow; only `loader` and
`batch` import torch, since the agent, which prepares the data, must stay free of it. The order of the data is
arithmetic, never state.
"""
