"""Model loaders of the core: GGUF files and safetensors directories."""
