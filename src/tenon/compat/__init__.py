"""The commands and interfaces of other compilers, over Tenon's public API."""
