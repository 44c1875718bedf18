"""Sample general plugins: a hook module and a function."""
