"""In the job: settings, the launch, the companion in each rank, the node's agent and what it captures.

Standard library only, because it runs inside other people's training images. The rooms, each importing those before it
alone: setup, rundir, live, capture, doctor, agent, launch.
"""
