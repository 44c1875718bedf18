"""Sample distribution: a logits processor that ends its process."""
