"""The core's own plugins; they come in through the same groups as everybody else's."""
