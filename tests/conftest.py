"""What all tests share."""

import signal

# a shell starts background jobs with Ctrl-C ignored, and the processes that tests interrupt would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
