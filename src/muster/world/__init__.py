"""Where clients live: devices, availability."""
