"""What leaves the machine: a run without its places, in the form that a reader elsewhere has."""
