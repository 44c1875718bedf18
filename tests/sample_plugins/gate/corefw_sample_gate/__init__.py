"""Sample general plugins: what stands on a request's way through the front end."""
