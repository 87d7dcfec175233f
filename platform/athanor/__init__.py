"""Athanor's control plane. The layers, and who may import whom, are in ARCHITECTURE.md and pyproject.toml."""
