"""What reports compute: scores of cells, paired differences, ranks, reach."""
