"""The ASGI side of every request: its lane of threads, limits of its body, and sending of its response.

A view runs in a thread. It gets its body complete, and its answer is sent after the thread is free, so no client can
hold a thread by being slow. May import api and config's settings; views know nothing of it.
"""
