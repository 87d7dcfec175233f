"""Where jobs can run: clusters, and in them pools of like slots with a price.

May import: core, backends (kinds). Must never import jobs or anything above.
"""
