"""KV blocks: pool, hashes, groups. No torch."""
