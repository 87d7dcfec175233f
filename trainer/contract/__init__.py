"""Wire types shared by the trainer and the control plane.

May import: the standard library, pydantic, and (only `encryption`) tink. Must never import torch, Django or
anything of either side. A change here is a change of protocol: fields are added, never renamed.
"""
