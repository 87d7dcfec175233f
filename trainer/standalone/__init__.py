"""Training without a platform: job files, progress on the terminal, dry runs, and ranks started by torchrun."""
