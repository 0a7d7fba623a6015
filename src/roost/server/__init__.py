"""The server: the one loop that decides, and the doors through which events come and effects go."""
