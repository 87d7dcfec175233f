"""HTTP only: parse, authorise, call one service or selector, render. The only user of Django REST framework.

`v1/` is for people and pipelines, one file a resource; `agent/` is for attempts, with their own tokens. Errors are
RFC 9457 problems. Must never hold a business rule.
"""
