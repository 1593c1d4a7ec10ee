"""Caffe: prototxt and caffemodel, to a graph."""
