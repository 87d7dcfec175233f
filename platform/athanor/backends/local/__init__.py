"""The local machine. Each attempt has a folder, which holds its complete state, and a detached shim process.

Files of an attempt's folder: `lock` (held by the living shim), `started` (made once, O_EXCL: an attempt never
starts twice), `exit.json` (how it ended), `stop` (please end), `kill` (end now), `log`, `work/` (scratch).
"""
