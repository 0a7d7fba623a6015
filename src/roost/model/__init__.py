"""The nouns: what Roost talks about, with their units, states and limits. No behaviour beyond validation."""
