"""A simulated QPU: sessions, tasks and faults like those of a vendor, circuits executed by Qiskit Aer."""
