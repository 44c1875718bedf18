"""The worker's side of KV transfers: the cache as raw pages, and the connector's calls in a step."""
