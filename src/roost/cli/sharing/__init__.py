"""Commands about projects, pools and reservations."""
