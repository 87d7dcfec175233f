"""Simulate admission over weeks of jobs, recorded or generated. Pure: no Django, no clock."""
