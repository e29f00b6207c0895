"""One-line faults in the important code, and the tests that must notice them."""
