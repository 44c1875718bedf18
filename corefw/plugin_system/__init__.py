"""Groups, discovery, allowlist, selection reports, hooks."""
