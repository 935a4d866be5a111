"""Numbers of any size with as many digits as asked for, and limits computed with them."""
