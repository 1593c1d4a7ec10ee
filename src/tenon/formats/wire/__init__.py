"""Encodings that several formats use: protobuf, its text form, flatbuffers, HDF5."""
