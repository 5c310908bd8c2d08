"""Real models by name, each with its tensor specs and a fixed seed."""
