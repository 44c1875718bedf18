"""Values that cross a stage or a process, in flow order. Plain data and byte buffers, never torch."""
