"""The container images: built from what is committed, with a list of their parts and a record of how they were made."""
