"""Vendors' HTTP services, faked closely enough for their own clients, with faults to order."""
