"""The run's directory, which the agents of all nodes share: who is there, each node's folder, what others wrote.

Whatever another node wrote is input, and read by one strict schema a file.
"""
