"""A wire between two network devices that can lose, delay and damage what goes over it.

  wire.py FD FD FILE     two TAP devices, open; FILE has {"loss": P, "delay": SECONDS, "corrupt": P}, and may change

Ends with its standard input. (tc's netem does the same in kernels that have it.)
"""
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time

GOOD = {"loss": 0, "delay": 0, "corrupt": 0}
ETHERNET = 14  # bytes of a frame's head, which no checksum of the hosts covers


def open_tap(name):
    """A device of this name in the network of this process, and the descriptor of its other side."""
    import fcntl
    set_interface, tap, no_info = 0x400454CA, 0x0002, 0x1000
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, set_interface, struct.pack("16sH22x", name.encode(), tap | no_info))
    return device


def start(ends, settings):
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), *map(str, ends), settings], stdin=subprocess.PIPE,
                            pass_fds=ends, start_new_session=True)


def damaged(frame):
    at = random.randrange(ETHERNET, len(frame))
    return frame[:at] + bytes([frame[at] ^ (1 << random.randrange(8))]) + frame[at + 1:]


def carry(ends, path):
    late, number, state, looked = [], 0, GOOD, 0
    other = {ends[0]: ends[1], ends[1]: ends[0]}

    def send(to, frame):
        try:
            os.write(to, frame)
        except OSError:
            pass  # that end is down

    while True:
        now = time.monotonic()
        if now > looked + 0.1:
            looked = now
            with open(path, encoding="utf-8") as file:
                state = json.load(file)
        while late and late[0][0] <= now:
            send(*heapq.heappop(late)[2:])
        ready, _, _ = select.select([*ends, 0], [], [], max(0, late[0][0] - now) if late else 0.5)
        if 0 in ready and not os.read(0, 1):
            return
        for end in ready:
            if end == 0:
                continue
            try:
                frame = os.read(end, 1 << 16)
            except OSError:
                continue
            if random.random() < state["loss"]:
                continue
            if random.random() < state["corrupt"]:
                frame = damaged(frame)
            if state["delay"] == 0:
                send(other[end], frame)
                continue
            number += 1
            heapq.heappush(late, (now + random.uniform(0, 2 * state["delay"]), number, other[end], frame))


if __name__ == "__main__":
    carry([int(sys.argv[1]), int(sys.argv[2])], sys.argv[3])
