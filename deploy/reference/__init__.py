"""The generated pages of docs/reference: the job spec, the command line, errors, events and families of models.

May import: athanor.specs, athanor.jobs.reasons, athanor.jobs.event_types, athanor.core.errors, athanor.cli,
trainer.contract. Must never import Django or start anything: a page is a function of the source.
"""
