"""The build of the bundled models: recipe, training text and training."""
