"""Reading on many machines, with Ray: files are read and summarised by tasks where they lie, and only the summaries
travel to the one process that joins and judges them.
"""
