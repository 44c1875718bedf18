"""Layers that know their shard: built for a rank, loaded by shard, bound to ops once."""
