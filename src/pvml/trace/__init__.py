"""Where a tensor gets its name, and the listeners that print, keep or change it."""
