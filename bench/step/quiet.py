"""How busy the machine is with what other processes do, so that nothing is timed beside them."""
import os
import sys
import time

# CPU seconds a second of other processes; above it nothing is timed, and what was timed does not count.
LIMIT = 0.05


def busy_seconds():
    """CPU seconds that the machine has spent on anything, stolen ones included."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class Others:
    """Counts what others use, from when it is made."""

    def __init__(self):
        self.start, self.busy, self.own = time.perf_counter(), busy_seconds(), time.process_time()

    def cores(self, children=0.0):
        """CPU seconds a second of all but this process and its `children`, which have used so many."""
        busy = busy_seconds() - self.busy - (time.process_time() - self.own) - children
        return max(0.0, busy) / (time.perf_counter() - self.start)


def require(patience=60):
    """Returns once a second passes in which others use next to nothing; ends the program if none does."""
    for _ in range(patience):
        others = Others()
        time.sleep(1)
        cores = others.cores()
        if cores <= LIMIT:
            return
    sys.exit(f"other processes use {cores:.2f} cores of this machine: what is timed now would mean nothing")
