"""This very machine. Each attempt has a folder and a detached keeper process; the folder tells everything.

Files of an attempt's folder: `lock` (held by the living keeper), `started` (made once, O_EXCL: an attempt never
starts twice), `exit.json` (how it ended), `stop` (please end), `kill` (end now), `log`, `work/` (scratch).
"""
