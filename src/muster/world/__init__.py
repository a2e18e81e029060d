"""The world that clients are in: devices, availability, the clock."""
