"""Model families, their layers, named ops and weight loading. Importing this package never imports torch."""
