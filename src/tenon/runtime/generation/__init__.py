"""Text by language models: their networks, run token by token."""
