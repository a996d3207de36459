"""A device and its host in simulated time: the host runs ahead of the device, as it does with a GPU."""


class SimulatedDevice:
    """A clock for `Meter`. `launch` queues work; a stamp is the moment when everything queued before it is done."""

    def __init__(self, delay=1):
        self.delay = delay
        self.host = 0.0
        self.free = 0.0

    def launch(self, seconds):
        self.free = max(self.free, self.host) + seconds

    def wait(self):
        self.host = max(self.host, self.free)

    def stamp(self):
        return max(self.free, self.host)

    def seconds_between(self, start, end):
        self.host = max(self.host, end)
        return end - start
