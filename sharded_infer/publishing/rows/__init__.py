"""The order of the rows of tables with id maps, and their parts."""
