"""What ropewalk is told to do: one file a command, and nothing heavy imported before it runs."""
