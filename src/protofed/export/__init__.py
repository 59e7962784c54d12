"""A trained model outside its run: as a file to take along, and asked about new images."""
