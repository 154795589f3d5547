"""Rules for products: rows by a packed weight, by a second matrix, step after step of a recurrence."""
