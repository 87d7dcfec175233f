"""Objects by key: a folder (standalone) or presigned URLs (platform), and sealed files on top of either.

May import: `trainer.contract`, `trainer.errors`, `trainer.platform`. Never torch: the agent uses it too.
What is stored is ciphertext only; `sealed` is the single place that turns bytes into parts and back.
"""
