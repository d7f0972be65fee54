"""Who does what: the lines of code that call, the operations of a training step, and the whole job without a fault."""
