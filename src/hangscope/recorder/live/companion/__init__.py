"""The start-up hook. This directory goes in front of PYTHONPATH; `sitecustomize.py` runs in every Python of the job.

Nothing here is imported by hangscope itself, and nothing here may import hangscope: it runs in the user's interpreter.
"""
