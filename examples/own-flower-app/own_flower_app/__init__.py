"""A Flower app that knows nothing of Muster but its server's strategy."""
