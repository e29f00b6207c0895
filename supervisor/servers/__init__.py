"""The life of servers: one keeper for each, its state, the commands to it, and what everybody may read of all."""
