"""The data report: reads the data of a spec as training does, and reports what a model would see and what is wrong.

May import: `trainer.contract`, `trainer.errors`, `trainer.storage`, `trainer.data`, numpy, tokenizers; never torch.
Memory is bounded by the size of a row and some 100 bytes per document; signatures of documents are in a temporary file.
Secrets that are found are never part of the report.
"""
