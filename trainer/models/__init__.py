"""The model as plain single-device mathematics. May import torch and `trainer.contract`; knows no mesh."""
