"""Answers that go on for hours: events as they happen, to many followers at once.

A view authenticates, authorises and counts the request like any other, in a thread. What it leaves behind is a
`Following`; the thread and its database connection are free again, and from there on the answer is a coroutine of
`asgi.py` that is fed by the process's one `Hub`. A follower costs a socket and some kilobytes, nothing else.
"""
