"""What runs a real federation: certificates, processes, the server's side of a Flower run, warm nodes."""
