"""A model that sees the colours of images, and an IO processor that fills in a form."""
