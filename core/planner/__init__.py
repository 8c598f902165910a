"""Which nodes, jointly with which resource: SQUIRO VI.2 brought past the paper. Needs the extra `planner`."""
