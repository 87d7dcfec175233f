"""The public API, version 1: additive only."""
