"""Streams of events that stay open for hours, to many subscribers of one process.

A view authenticates, authorises and counts the request like any other, in a thread. It stores a
`Subscription` in the ASGI scope; the thread and its database connection are then free, and a coroutine of `asgi.py`
continues the response with updates from the process's one `Hub`. A subscriber costs a socket and some kilobytes.
"""
