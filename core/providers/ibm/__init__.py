"""IBM's two interfaces: the Quantum Compute Service (cloud) and the Quantum System API (a machine on site)."""
