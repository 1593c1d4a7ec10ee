"""TFLite files from graphs, quantised ones above all."""
