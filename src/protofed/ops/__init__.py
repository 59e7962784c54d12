"""Parts that two or more methods share: pure functions, no state."""
