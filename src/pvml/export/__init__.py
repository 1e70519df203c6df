"""Models in other libraries' forms, each read back by its library before it is kept."""
