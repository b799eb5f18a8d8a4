"""What the user asks for: every setting, its default, where it is read from and what can be wrong with it."""
