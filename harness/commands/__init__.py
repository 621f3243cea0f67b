"""The commands: for each, the one function that Python and the command line call.

A command returns its result, whose ``str`` is what the command line prints, and prints nothing;
notes go to the logger ``ropewalk``. What takes long to import is imported inside the function.
"""
