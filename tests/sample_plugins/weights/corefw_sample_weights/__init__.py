"""Sample links of the loading chain: a filter and a transform."""
