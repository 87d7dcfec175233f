"""How a plain model is spread over ranks: process group, data axis, collectives. May import torch and models."""
