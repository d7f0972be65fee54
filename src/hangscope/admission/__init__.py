"""The door of a Kubernetes cluster: `hangscope serve --admission` adds the recorder's settings to pods that are made.

`pod_patch.py` decides what is added to which pod, as a plain function; `review.py` reads what the API server asks;
`https_server.py` answers it. No pod is ever refused.
"""
