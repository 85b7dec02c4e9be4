"""The `moesaic` command: start a mesh, look at it, put load on it. May import every portion; nobody imports it."""
