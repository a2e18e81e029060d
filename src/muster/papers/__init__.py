"""The tables and figures of five papers: published numbers, how to run them here, and the comparison."""
