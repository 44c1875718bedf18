"""Named ops: schema, reference, fake; bound once at build."""
