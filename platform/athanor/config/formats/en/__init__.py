"""English formats of Django's admin."""
