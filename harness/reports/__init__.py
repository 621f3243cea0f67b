"""Tables and figures made from samples. A public module here is a report."""
