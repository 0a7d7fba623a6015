"""Who may do what: tokens, members, join tokens, secrets."""
