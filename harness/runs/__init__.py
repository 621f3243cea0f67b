"""What lies on disk, and the frame made from it."""
