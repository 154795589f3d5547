"""Rules for whatever has none of its own, and the nets under all of them."""
