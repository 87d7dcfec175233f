"""The database backend of the platform: Django's for PostgreSQL, whose sessions are reset when a request ends."""
