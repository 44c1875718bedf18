"""Further routes for the server, one endpoint plugin each."""
