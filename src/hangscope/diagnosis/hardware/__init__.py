"""Below NCCL: the ports that a connection runs over, what their counters and the kernel say, and what Xids mean.

Joins and published tables, no judgement of the hang: `diagnosis` asks, and says how sure that makes it.
"""
