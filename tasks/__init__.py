"""The measurements. A public module here is a task; the file is its registration."""
