"""OneFlow's saved graphs."""
