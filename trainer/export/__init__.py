"""Finished models as safetensors in Hugging Face's layout, and sampling from them with our own decoder."""
