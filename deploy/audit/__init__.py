"""Known-bad versions of dependencies: a list in this repository, and what is compared with it without a network."""
