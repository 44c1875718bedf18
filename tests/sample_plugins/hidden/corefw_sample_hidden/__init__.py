"""Hidden states of layers in the response."""
