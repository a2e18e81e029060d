"""What people see of runs in a terminal or a notebook."""
