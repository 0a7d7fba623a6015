"""Webhooks and command hooks: events out of commits, one queue each."""
