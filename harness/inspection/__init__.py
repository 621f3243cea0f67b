"""Pictures of a method, without weights."""
