#!/usr/bin/env python
"""Run Django's commands, with platform/ on sys.path."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "athanor.config.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
