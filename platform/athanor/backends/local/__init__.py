"""The local machine. Each attempt has a folder with its complete state, and a detached shim process.

Files of an attempt's folder: `lock` (held by the live shim), `started` (created once, O_EXCL: an attempt never starts
twice), `exit.json` (how it ended), `stop` (request to end), `kill` (request to end immediately), `log`, `work/`
(scratch).
"""
