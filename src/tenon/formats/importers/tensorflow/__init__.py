"""TensorFlow: frozen graphs and SavedModels."""
