"""Commands about logins, tokens, roles and secrets."""
