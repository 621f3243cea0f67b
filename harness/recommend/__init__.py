"""Which method to use at a target length: a race of candidates on the same documents."""
