"""MegEngine's dumps."""
