"""Reading checkpoints: GGUF, safetensors, names and row orders. Header readers are torch-free."""
