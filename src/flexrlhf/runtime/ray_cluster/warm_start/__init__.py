"""Worker processes that begin with their imports done: forked from a template that has them.

`template.py` is the driver's side, `template_process.py` the process that is forked, `launcher.py`
the program that Ray starts as a worker in place of its own.
"""
