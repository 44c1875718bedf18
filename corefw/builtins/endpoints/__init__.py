"""The core's own routes; they come in through the same group as everybody else's."""
