"""Commands about nodes and servers."""
