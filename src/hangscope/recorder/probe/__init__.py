"""Whether an inference server moves, for exec probes: `server_metrics.py` reads what /metrics says, `server_state.py`
compares it with the looks before, `ask_server.py` fetches and remembers.
"""
