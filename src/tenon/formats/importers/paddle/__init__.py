"""PaddlePaddle: programs of 1.x to 3.x."""
