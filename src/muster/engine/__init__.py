"""Runs clients on this machine: one by one in processes, or slices of a cohort as one batched computation."""
