"""A process tree with an owner: how it is started, who belongs to it, and how it is ended to the last member."""
