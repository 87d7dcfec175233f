"""A stand-in for a Kubernetes cluster on loopback: an API server that keeps state, the controllers that a Job needs,
and a kubelet whose pods are real processes of this machine.

It follows what the API does on the wire (uid, resourceVersion, generation, selectors, pages, watches, 401, 403, 404,
409, 410, 422, server-side apply) and what the Job controller, the scheduler, the taint manager and the garbage
collector do to Indexed Jobs; where it is simpler than a cluster, the module that is says so.
"""
