"""The engine as an assistant's tool (`hangscope mcp`, extra `mcp`): the engine answers, the assistant only talks.

`mcp_server` speaks the protocol and lets every question be answered by a process of its own (`answer_process`), within
a time, without writing, from below the directories that were given (`confined_paths`), and no longer than fits
(`bounded_answer`). `answers` has one function a tool, `kind_texts` what kinds and confidence mean.
"""
