"""The life of servers: one keeper a server, its state, the commands to it, and what everybody may read of all."""
