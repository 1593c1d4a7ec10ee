"""TFLite: flatbuffers, float and quantised."""
