"""From single runs to comparisons: grids of runs, paired statistics, tables."""
