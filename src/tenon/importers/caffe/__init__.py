"""Caffe: prototxt and caffemodel, to a graph and back (``optimize``)."""
