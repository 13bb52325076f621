"""What every test may rely on."""

import signal

# A run in the background inherits an ignored SIGINT, one under nohup an ignored SIGHUP, and so would what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # this run stays deaf to it; what is started gets the default
