"""The scheduler's side of KV transfers: what is loaded, who waits for it, whose blocks are still read. No torch."""
