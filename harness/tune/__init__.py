"""Search the options of a method, or free factors of its channels."""
