"""The experiment file: its schema, workloads and defaults."""
