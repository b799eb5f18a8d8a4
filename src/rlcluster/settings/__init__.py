"""The user's settings: their schema, defaults, loading and validation."""
