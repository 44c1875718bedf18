"""Sample plugins for hardware that isn't here: what would be chosen for it can be explained all the same."""
