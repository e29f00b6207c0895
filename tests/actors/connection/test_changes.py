"""P2: how a server says that its tools changed, on a wire, in both eras; and what follows from it."""
