"""ConnectionStatus: until when a device behind a gateway can be reached."""

from __future__ import annotations

from typing import ClassVar

from tests.contract.payload_mapper import MapperBehaviors


class TestConnectionStatus(MapperBehaviors):
    name = "ConnectionStatus"
    options: ClassVar = {"thingId": "{{ header:device_id }}"}
    headers: ClassVar = {"device_id": "acme.site:lamp-7", "creation-time": "1569333903000", "ttd": "20"}
