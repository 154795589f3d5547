"""What several operators are made of, and what passes, importers and models need of it."""
