"""Sample plugins of the server: layers around routes, another protocol, an endpoint that generates."""
