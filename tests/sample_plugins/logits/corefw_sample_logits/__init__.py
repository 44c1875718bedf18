"""Sample distribution: logits processors."""
