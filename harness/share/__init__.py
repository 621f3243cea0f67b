"""What leaves the machine: a run without file paths, in the form that a reader elsewhere uses."""
