"""Answers that a person understands, decoded from a network's outputs: classes, points, masks, text, ..."""
