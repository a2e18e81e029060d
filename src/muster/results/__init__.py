"""What runs leave behind: the store, plain files, grouping into cases, export."""
