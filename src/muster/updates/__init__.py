"""What clients send and keep: checks on updates, and the state that stays with a client."""
