"""Causal language models that transformers knows, on corefw's paged attention. Importing this never imports torch."""
