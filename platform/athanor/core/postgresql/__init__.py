"""The database backend of the platform: Django's for PostgreSQL, with sessions that forget their caller."""
