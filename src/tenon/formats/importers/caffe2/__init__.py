"""Caffe2: predict and init nets."""
