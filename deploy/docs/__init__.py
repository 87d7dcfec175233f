"""The documentation as a site: `python -m deploy.docs` builds it from docs/, without a network."""
