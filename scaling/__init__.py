"""The mathematics. A public module here is a scaling method; the file is its registration."""
