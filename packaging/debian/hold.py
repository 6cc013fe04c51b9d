"""A device that holds one connection, and sends one Ping after the other over it.

usage: hold.py FILE
FILE has the number of the last Ping that was answered. The script fails if the server ends the
connection, or does not answer in a minute.
"""

import itertools
import os
import socket
import sys
import time

HELLO, PING, PONG = 1, 2, 2


def message(kind, text):
    """A message whose first field is this text. Both are short, so that each length has one byte."""
    fields = bytes([10, len(text)]) + text
    return bytes([kind << 3 | 2, len(fields)]) + fields


def send(message):
    connection.sendall(bytes([len(message)]) + message)


def hear():
    length = shift = 0
    while True:
        byte = stream.read(1)
        assert byte, "the server has ended the connection"
        length |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            return stream.read(length)


connection = socket.create_connection(("127.0.0.1", 7070), 60)
stream = connection.makefile("rb")
send(message(HELLO, b"held"))
for number in itertools.count():
    text = b"%d" % number
    send(message(PING, text))
    while hear() != message(PONG, text):
        pass
    with open(sys.argv[1] + ".new", "wb") as file:
        file.write(text)
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    time.sleep(0.05)
