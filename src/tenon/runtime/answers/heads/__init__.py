"""A module for each kind of head; ``registry`` finds them."""
