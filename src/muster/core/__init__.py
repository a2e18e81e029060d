"""What everything else stands on: arrays, components and their registry, errors, parameters, randomness."""
