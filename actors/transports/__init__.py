"""How an incarnation reaches its server: each module opens one kind of connection and ends all it started."""
