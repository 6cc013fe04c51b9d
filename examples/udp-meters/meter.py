"""A meter: it activates with its serial number and key, and publishes readings by datagram.

A datagram may be lost in either direction. So the meter asks again until an answer comes, each time
after a longer pause. Each request has an id: a repeated one is answered, but not done twice.
"""

import argparse
import json
import random
import socket
import time


class Meter:
    def __init__(self, serial: str, key: str, gateway: str) -> None:
        host, port = gateway.rsplit(":", 1)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((host, int(port)))
        self.serial, self.key = serial, key
        self.token = None
        self.requests = 0

    def ask(self, **request) -> dict:
        """Sends a request until its answer comes."""
        self.requests += 1
        number = f"{self.serial}-{self.requests}"
        datagram = json.dumps(request | {"id": number}).encode()
        wait = 1.0
        while True:
            self.socket.settimeout(wait)
            try:
                self.socket.send(datagram)
                while True:
                    answer = json.loads(self.socket.recv(2048))
                    if answer.get("id") != number:
                        continue  # Late, for an earlier request.
                    if "retryAfterMs" not in answer:
                        return answer
                    time.sleep(answer["retryAfterMs"] / 1000)
                    break
            except OSError:  # No answer in time, or nobody listens there now.
                time.sleep(random.uniform(0, wait))
                wait = min(2 * wait, 60.0)

    def activate(self) -> None:
        answer = self.ask(devSn=self.serial, devKey=self.key)
        if "pt" not in answer:
            raise SystemExit(f"{self.serial}: {answer['message']}")
        self.token = answer["pt"]

    def publish(self, reading: dict) -> str:
        """Publishes a reading and returns its offset."""
        message = {"topic": f"meter/{self.serial}", "text": json.dumps(reading)}
        while True:
            answer = self.ask(pt=self.token, publish=message)
            if answer.get("error") == "unauthorized":
                self.activate()
            elif "error" in answer:
                raise SystemExit(f"{self.serial}: {answer['message']}")
            else:
                return answer["published"]["offset"]


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("serial")
    arguments.add_argument("key")
    arguments.add_argument("--gateway", default="127.0.0.1:7070")
    arguments.add_argument("--readings", type=int, default=10)
    arguments.add_argument("--pause", type=float, default=1.0)
    options = arguments.parse_args()
    meter = Meter(options.serial, options.key, options.gateway)
    meter.activate()
    kwh = random.uniform(1000, 9000)
    for _ in range(options.readings):
        kwh += random.uniform(0, 0.1)
        offset = meter.publish({"kwh": round(kwh, 3)})
        print(f"{options.serial}: {kwh:.3f} kWh, offset {offset}", flush=True)
        time.sleep(options.pause)
