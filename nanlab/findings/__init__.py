"""Finding, rule, fault: what a report of a fault is made of."""
