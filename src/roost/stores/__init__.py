"""Where state is kept: one file per store, one contract for all."""
