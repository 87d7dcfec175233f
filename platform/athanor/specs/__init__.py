"""What a user may ask for: JobSpec v1, its defaults, checks and presets. Pure: no Django, no database.

May import: core.errors, trainer.contract. Must never import a model or a setting.
"""
