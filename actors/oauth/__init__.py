"""The OAuth client: tokens, and how a connection gets and renews them."""
