"""PaddlePaddle: programs of 1.x and 2.x."""
