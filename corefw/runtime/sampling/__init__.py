"""A stateless sampler and the counter-based randomness it draws from."""
