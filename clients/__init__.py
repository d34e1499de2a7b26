"""What runs on a client: update rules, and mods between them and the wire."""
