"""The parent process of the agent and of every run. Standard library only."""
