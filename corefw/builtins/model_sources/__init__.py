"""Model sources of the core: a directory, a GGUF file, a Python package that carries a model, the Hugging Face hub."""
