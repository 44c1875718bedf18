"""Sample scheduler strategies, and an observer with settings of its own."""
