"""What a connection is: its model, templates, secrets, and life cycle."""
