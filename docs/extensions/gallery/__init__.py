"""The gallery: models with their answers, sizes and times, each described by a file of ``docs/gallery/models``."""
