"""What a run says of itself: phases, step statistics, throughput, MFU. May import torch, contract and spool."""
