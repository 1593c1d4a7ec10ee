"""Containers that several formats are written in: protobuf, its text form, flatbuffers, HDF5."""
