"""Explanations: why, plan, drain preview, suggestions, estimates. Never changes the state."""
