"""Safety rules switched off one at a time; each must be noticed."""
