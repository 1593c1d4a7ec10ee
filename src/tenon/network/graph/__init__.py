"""The graph of operators and the values between them."""
