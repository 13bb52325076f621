"""What every test may rely on."""

import signal

# A run that was started in the background inherits an ignored SIGINT, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
