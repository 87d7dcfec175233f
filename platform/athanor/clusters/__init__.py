"""Clusters that jobs can run on, and their pools of identical slots with a price.

May import: core, backends (kinds). Must never import jobs or anything above.
"""
