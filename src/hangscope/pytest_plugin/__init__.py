"""`pytest --hangscope`: a test that outlives its timeout is captured and diagnosed before it is ended.

`plugin.py` is what pytest loads, `hung_tests.py` goes along with each test, `watcher.py` is a process of its own beside
pytest, which looks at the clock and has the job captured from outside.
"""
