"""Export a scaling to serving engines, one file per engine; examine models and servers."""
