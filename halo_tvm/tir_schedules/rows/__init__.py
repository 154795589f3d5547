"""Rules for functions of rows: reductions along the last axis and what is mapped with them."""
