"""HTTP as a wire: each frame has an exchange of its own, and one task owns it from its first byte to the outcome."""
