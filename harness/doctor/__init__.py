"""Find faults between what a model's author meant, what is patched, and what a server computes."""
