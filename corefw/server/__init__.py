"""The ASGI app, authentication, limits, errors, the OpenAI protocol."""
