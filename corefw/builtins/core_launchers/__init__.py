"""Launchers of engine cores that the core ships."""
