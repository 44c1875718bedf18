"""The model runner: a composer over batch state, input preparation, metadata, execution and sampling."""
