"""Amazon Braket through amazon-braket-sdk: its devices and simulators, and its simulators on this host."""
