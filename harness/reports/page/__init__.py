"""One page that holds a whole report: tables, charts and what draws them, in a single file."""
