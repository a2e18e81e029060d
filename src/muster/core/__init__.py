"""The foundation of everything else: arrays, components and their registry, errors, parameters, randomness."""
