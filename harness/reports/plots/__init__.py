"""How figures are drawn: style, panels, heat maps, labels."""
