"""From where a rank makes its calls, learnt while all is well: in a hang its GIL is often held."""
