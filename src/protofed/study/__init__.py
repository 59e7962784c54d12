"""From single runs to comparisons: grids of runs side by side, paired statistics, tables."""
