"""What the benchmarks share. The modules for peers import nothing of Muster: they run in another environment."""
