"""The history database: finished work and past states."""
