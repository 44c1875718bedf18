"""Ranks side by side: how they meet, and what they do together."""
