"""Ranks as actors of a Ray cluster: placed by a placement group, neighbours in rank where they are on one node."""
