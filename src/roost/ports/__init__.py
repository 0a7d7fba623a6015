"""The promises Roost asks of the outside: small protocols, each with an in-memory twin that ships."""
