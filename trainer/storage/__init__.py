"""Objects by key: a folder (standalone) or presigned URLs (platform), and encrypted files on top of either.

May import: `trainer.contract`, `trainer.errors`, `trainer.client`. Never torch: the agent uses it too. What is stored
is ciphertext only; `encrypted` is the single place that turns bytes into parts and back.
"""
