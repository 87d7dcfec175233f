"""The admission policy: a snapshot in, decisions out. Pure: no Django, no clock.

`cycle.decide` is the entry point; the simulator, previews and estimates call it too.
"""
