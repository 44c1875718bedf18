"""Sample platform plugins, one for each thing that an entry point may be."""
