"""The backend: pushes numbered messages to every phone, awake or asleep.

Arguments: the number of phones, at most 1,000, and the number of messages to each.
"""

import json
import os
import sys
import time
import urllib.request

URL = os.environ.get("ADMIN", "http://127.0.0.1:7090") + "/v1/publish"


def publish(messages: list[dict]) -> None:
    """Publishes messages with one request, and again those for which there was no room."""
    while messages:
        body = json.dumps({"messages": messages}).encode()
        request = urllib.request.Request(URL, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            results = json.load(answer)["results"]
        # The results have the order of the messages.
        messages = [each for each, result in zip(messages, results) if "error" in result]
        time.sleep(0.3)


phones, count = int(sys.argv[1]), int(sys.argv[2])
for number in range(1, count + 1):
    text = f"message {number}"
    publish([{"topic": f"phone/phone-{phone}", "text": text} for phone in range(1, phones + 1)])
    print(f"{text} to {phones} phones", flush=True)
