"""The command line with a service and a real broker: the page on managing connections, and a restart."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from connectivity.cli.main import app
from tests.support.api.canned_server import PROGRAM
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.manage_connections_page import walk
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

TOKEN = "token-of-the-one-who-operates"


def test_an_operator_walks_through_the_commands_and_a_service_that_is_killed_comes_back(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    """Connections stored by the API are there after SIGKILL, and a command that follows the log continues."""
    files, lines = walk()
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace("tcp://localhost:1883", mosquitto.uri()))
    with ServiceProcess.start(tmp_path, [], api={"token": TOKEN}) as service:
        variables = {"CONNECTIVITY_URL": f"http://127.0.0.1:{service.port}", "CONNECTIVITY_TOKEN": TOKEN}

        def run(line: str) -> Result:
            words = [str(tmp_path / word) if word in files else word for word in line.split()]
            result = CliRunner().invoke(app, words, env=variables)
            assert result.exit_code == (3 if "--plan" in line else 0), (line, result.output, result.exception)
            assert TOKEN not in result.output
            return result

        *before, last = lines
        assert "delete" in last
        printed = {line: run(line).stdout for line in before}
        assert "lamps" in printed["connections status lamps"]
        wait_until_sync(lambda: "connected" in run("connections status lamps").stdout, 60.0)
        assert "lamps: new" in printed["connections apply lamps.yaml --yes"]
        output_file = tmp_path / "output.txt"
        follow = ["connections", "logs", "lamps", "--follow", "--json", "--interval", "0.2"]
        with output_file.open("wb") as output:
            following = subprocess.Popen(
                [*PROGRAM, *follow],
                stdout=output,
                stderr=output,
                env={**os.environ, **variables, "PYTHONUNBUFFERED": "1"},
            )
        try:
            service.kill()
            wait_until_sync(lambda: "; waiting" in output_file.read_text(), 60.0)
            service.start_again()
            wait_until_sync(lambda: "available again" in output_file.read_text(), 60.0)
            following.send_signal(signal.SIGINT)
            assert following.wait(60) == 130, output_file.read_text()
        finally:
            following.kill()
            following.wait()
        assert "Traceback" not in output_file.read_text()
        assert run("connections list --ids").stdout == "lamps\n"
        run(last)
        assert run("connections list").stdout == "no connections\n"
