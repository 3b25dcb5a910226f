"""The settings of the service: one YAML or JSON file, and `CONNECTIVITY_…` environment variables.

Environment variables override the file. A nested setting has two underscores: `api.port` is `CONNECTIVITY_API__PORT`. An
empty variable is treated as absent. Durations are a number with a unit (`500ms`, `10m`, `7d`; without one: seconds) or,
where allowed, `forever`. Sizes are bytes or have a unit (`512KiB`, `1MiB`). Relative paths begin at the working folder.
`load_settings` reports every problem at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from connectivity.config.api_settings import ApiSettings
from connectivity.config.extras import Extra
from connectivity.config.quantities import (
    FOREVER,
    SIZE,
    AnyPath,
    DaysForm,
    Duration,
    DurationOrForever,
    DurationOrForeverForm,
    Listed,
    MemoryForm,
    Positive,
    PositiveDuration,
    Ratio,
    read_days,
    read_duration_or_forever,
    read_json_or_text,
    read_memory,
    read_off_as_text,
)
from connectivity.config.quotas import QuotaRule
from connectivity.config.section import Section
from connectivity.config.text_form import TextForm
from connectivity.security import creation, egress
from connectivity.security.keys import read_key
from connectivity.security.token_integration import DEFAULT, TokenIntegration, check_template
from mappings.errors import DecodeError
from mappings.model.json_pointer import format_pointer, parse_pointer
from mappings.texts import lower_text
from spark_store.records import EXPECTED_MASTER, JAVA_MEMORY, LOCAL_MASTER

PREFIX = "CONNECTIVITY_"


class JournalSettings(Section):
    """The retention of the journal."""

    retention: DurationOrForever = Field(
        default=timedelta(days=7), description="Minimum time for which events stay in the journal."
    )
    redelivery_window: Duration = Field(
        default=timedelta(minutes=10),
        description="How long the service remembers deliveries, so that it does not process a redelivery twice. It "
        "remembers deliveries of Kafka at least until their offset is committed.",
    )
    historical_headers: Annotated[tuple[str, ...], NoDecode, Listed] = Field(
        default=(),
        description="Names of the headers of a command that are stored with the event of the command and "
        "shown in the history.",
    )


class RetentionSetting(Section):
    """Which events are kept: by age, and the newest of each entity; without either, all."""

    days: Annotated[timedelta | None, BeforeValidator(read_days, json_schema_input_type=DaysForm)] = Field(
        default=None, description="Events up to this age in days are kept, regardless of their number."
    )
    revisions: Positive | None = Field(
        default=None, description="Number of newest revisions of each entity that are kept, regardless of their age."
    )


def _read_retention_rule(value: object) -> object:
    if isinstance(value, str):
        value = read_json_or_text(value)
    if isinstance(value, RetentionSetting):
        return value
    if isinstance(value, Mapping):
        if not value:
            raise ValueError(_EXPECTED_RETENTION_RULE)
        return value
    try:
        found = RetentionSetting(days=read_duration_or_forever(value))
    except (ValueError, ValidationError):
        raise ValueError(_EXPECTED_RETENTION_RULE) from None
    if found.days == timedelta(0):
        # It would delete the whole history, and often means "no limit" elsewhere.
        raise ValueError(f"a duration above 0, or {FOREVER}")
    return found


_EXPECTED_RETENTION_RULE = f"a duration such as 30d, {FOREVER}, or an object with days, revisions or both"

Keeping = Annotated[
    RetentionSetting,
    BeforeValidator(_read_retention_rule, json_schema_input_type=RetentionSetting | DurationOrForeverForm),
]


def read_retention(value: object) -> object:
    """Return the rules by namespace. Raises ValueError."""
    if isinstance(value, str):
        value = read_json_or_text(value)
    if isinstance(value, RetentionSettings):
        return value
    limits = RetentionSetting.model_fields.keys()
    if not isinstance(value, Mapping) or (value and value.keys() <= limits):
        return {"default": value}
    # As durations, these numbers would be seconds.
    if any(re.fullmatch(_BARE_NUMBER, str(value[name])) for name in value.keys() & limits):
        raise ValueError(_EXPECTED_RETENTION)
    return value


_EXPECTED_RETENTION = (
    "a rule for each namespace and default; days and revisions with a number are the limits of one rule: "
    "{default: {days: 30}, acme: forever}"
)


_NAMESPACE = "^[^:]*$"
"""The form of a namespace. That of a stream is any text before the first colon of its ID."""

_BARE_NUMBER = r"\s*[0-9.]+\s*"
_NO_LIMIT: JsonDict = {"not": {"type": ["number", "string"], "pattern": f"^{_BARE_NUMBER}$"}}
"""The values of a namespace that has the name of a limit."""


class RetentionSettings(Section):
    """Which events are kept: by namespace, and by default."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "propertyNames": {"pattern": _NAMESPACE},
            "allOf": [
                {"properties": dict.fromkeys(RetentionSetting.model_fields, _NO_LIMIT)},
                # Limits alone are one rule.
                {"not": {"minProperties": 1, "propertyNames": {"enum": [*RetentionSetting.model_fields]}}},
            ],
        },
    )

    default: Annotated[Keeping, NoDecode] = Field(
        default=RetentionSetting(), description="For namespaces without a rule of their own."
    )
    __pydantic_extra__: dict[Annotated[str, TextForm(_NAMESPACE, "a namespace, which has no colon")], Keeping] = Field(
        init=False
    )

    @property
    def rules(self) -> Mapping[str, RetentionSetting]:
        """Every rule, by namespace and `default`."""
        return {"default": self.default, **(self.__pydantic_extra__ or {})}

    def of(self, namespace: str) -> RetentionSetting:
        """Return the retention of this namespace."""
        return (self.__pydantic_extra__ or {}).get(namespace, self.default)


class LakeSettings(Section):
    """The retention and maintenance of the lake."""

    retention: Annotated[
        RetentionSettings,
        NoDecode,
        BeforeValidator(read_retention, json_schema_input_type=Keeping | RetentionSettings),
    ] = Field(
        default=RetentionSettings(),
        description="Which events are kept: a duration, `forever`, `{days: 30, revisions: 1000}` (an event is kept "
        "if one of these limits keeps it; one limit may be left out), or an object that maps namespaces and "
        "`default` to such values.",
    )
    retention_every: PositiveDuration = Field(
        default=timedelta(hours=1), description="How often to delete events that exceed their retention."
    )
    interval: Duration = Field(
        default=timedelta(seconds=5),
        description="How often new events are copied to the lake; `0s`: immediately, which costs more files and "
        "processor time.",
    )
    optimize_every: PositiveDuration = Field(
        default=timedelta(minutes=10), description="How often tables that have grown are compacted and clustered."
    )
    optimize_files: Positive = Field(
        default=256,
        description="Number of new files that triggers compaction immediately; 64 batches trigger it in any case.",
    )
    vacuum_every: PositiveDuration = Field(
        default=timedelta(minutes=10), description="How often unused files are removed."
    )


class SubscriptionSettings(Section):
    """Timers and bounds of subscriptions."""

    idle_timeout: PositiveDuration = Field(
        default=timedelta(seconds=60), description="A subscription without a request for this time ends."
    )
    after_life: Duration = Field(
        default=timedelta(seconds=10),
        description="How long requests to an ended subscription still get its final state.",
    )
    open_timeout: PositiveDuration = Field(
        default=timedelta(seconds=15),
        description=(
            "How long a subscription waits for the first page of a history (the header `timeout` of the subscribe "
            "overrides this time), and how long a search of the past waits for the lake."
        ),
    )
    max_per_user: Positive = Field(
        default=10_000,
        description="Maximum number of open subscriptions of one user at a connection; several peers or sessions of a "
        "user can have up to half as many more. All users of the connection together can have three times as many; the "
        "more subscriptions the other users have, the fewer a user can open.",
    )
    page_items: Positive = Field(default=500, description="Maximum number of items that are read at a time.")
    page_bytes: Annotated[ByteSize, Field(ge=1), SIZE] = Field(
        default=ByteSize(1024 * 1024), description="Maximum number of bytes that are read at a time."
    )


MAX_INDEXED_PATHS = 32
"""The most paths with an index of their own."""


def _is_indexed_path(text: str) -> str:
    """A path of an attribute or of a property, without its leading slash. Raises ValueError."""
    try:
        place = parse_pointer(text)
    except DecodeError as error:
        raise ValueError(f"a path: {error}") from error
    match place:
        case ("attributes", _, *_):
            pass
        case ("features", feature, "properties" | "desiredProperties", _, *_) if feature != "*":
            pass
        case _:
            raise ValueError("a path such as attributes/room or features/lamp/properties/on")
    return format_pointer(place).removeprefix("/")


class SearchSettings(Section):
    """The limits of searches."""

    budget: PositiveDuration = Field(
        default=timedelta(seconds=5), description="How long a search may take to fill one page."
    )
    budget_for_all: PositiveDuration = Field(
        default=timedelta(seconds=60), description="How long counting or aggregating all matches may take."
    )
    workers: Positive = Field(default=2, description="Maximum number of concurrent searches.")
    past_timeout: PositiveDuration = Field(
        default=timedelta(seconds=60), description="How long a Spark search of past states may take."
    )
    indexed_paths: Annotated[tuple[Annotated[str, AfterValidator(_is_indexed_path)], ...], NoDecode, Listed] = Field(
        default=(),
        max_length=MAX_INDEXED_PATHS,
        description="Paths at which many things share a value, such as `attributes/room`: each path gets its own "
        "index, ordered by ID. The service builds the index while it runs; each change of such a value takes "
        "slightly longer.",
    )


class ReconnectSettings(Section):
    """Pauses between connection attempts: from `min` to `max`, doubled each time, with jitter."""

    min: Duration = Field(default=timedelta(milliseconds=500), description="The first pause.")
    max: Duration = Field(default=timedelta(seconds=30), description="The longest pause.")

    @model_validator(mode="after")
    def _in_order(self) -> ReconnectSettings:
        if not timedelta(0) < self.min <= self.max:
            raise ValueError("min above 0, and max not below min")
        return self


class SourceSettings(Section):
    """The settlement of deliveries, and the limits of unsettled deliveries."""

    settle_timeout: PositiveDuration = Field(
        default=timedelta(minutes=5),
        description="The service rejects a delivery that nothing has settled within this time, so that its source "
        "does not stall. The time does not run while the delivery waits for acknowledgements, or for another "
        "connection's broker.",
    )
    unsettled_bytes: Annotated[ByteSize, Field(ge=1024 * 1024), SIZE] = Field(
        default=ByteSize(16 * 1024 * 1024),
        description="Bytes of unsettled deliveries, at least `1MiB`, at which a client stops consuming until half of "
        "the bytes are settled. See [Limits, refused and unsent messages](limits.md).",
    )


class LimitSettings(Section):
    """The limits of sizes."""

    payload: Annotated[ByteSize, Field(ge=1), SIZE] = Field(
        default=ByteSize(1024 * 1024), description="Largest payload, in bytes."
    )
    low_space: Annotated[ByteSize, Field(ge=0), SIZE] = Field(
        default=ByteSize(64 * 1024 * 1024),
        description="If the disk of `data_dir` has less free space than this, clients can change things and "
        "policies, but cannot create any.",
    )


def _is_key(value: SecretStr) -> SecretStr:
    read_key(value.get_secret_value())
    return value


SecretKey = Annotated[SecretStr, AfterValidator(_is_key)]
"""A key in base64, checked."""


class SecretSettings(Section):
    """The keys that encrypt secrets of the API, and the rules for secret references.

    Without any key the service creates one in `data_dir`.
    """

    key: SecretKey | None = Field(
        default=None, description="The key, 32 bytes in base64; `connectivity secrets new-key` prints one."
    )
    key_file: AnyPath | None = Field(
        default=None,
        description="A file of keys, one per line, the newest key first. Only the file's owner and group may have "
        "permission to read it.",
    )
    old_keys: Annotated[tuple[SecretKey, ...], NoDecode, Listed] = Field(
        default=(), description="Former keys, which still decrypt the secrets they encrypted."
    )
    folders: Annotated[tuple[AnyPath, ...], NoDecode, Listed] = Field(
        default=(),
        description="Folders that `${file:PATH}` may read from. Default: none for documents sent to the API; for connection "
        "files all, except the service's own files.",
    )
    variables: Annotated[tuple[str, ...], NoDecode, Listed] = Field(
        default=(),
        description="Environment variables that `${env:NAME}` may read in documents sent to the API: names, or patterns "
        "such as `BROKER_*`. Default: none. Connection files may read all except the service's own.",
    )


def _is_host_entry(text: str) -> str:
    egress.entry(text)
    return text


HostEntry = Annotated[str, AfterValidator(_is_host_entry)]


class HostSettings(Section):
    """The hosts to which connections may connect.

    The service always refuses link-local addresses and the metadata services of clouds.
    """

    private: Annotated[Literal["allow", "refuse"], BeforeValidator(lower_text)] = Field(
        default="allow",
        description="`refuse`: connections may connect only to public addresses, not to loopback, private or other "
        "non-routed networks.",
    )
    blocked: Annotated[tuple[HostEntry, ...], NoDecode, Listed] = Field(
        default=(),
        description="Addresses, networks (`10.0.0.0/8`) and names (`*.internal`) to which connections may not connect.",
    )
    allowed: Annotated[tuple[HostEntry, ...], NoDecode, Listed] = Field(
        default=(),
        description="Addresses, networks and names that are always allowed; overrides the other two settings.",
    )

    @property
    def rules(self) -> egress.EgressRules:
        """As `connectivity.security.egress` judges by them."""
        return egress.EgressRules(self.private == "allow", self.blocked, self.allowed)


NameList = Annotated[tuple[str, ...], Listed]
"""Names as a list, or separated by commas."""


class CreationRuleSettings(Section):
    """A rule about creations: it applies if each list is empty or has an entry that matches."""

    types: Annotated[tuple[Literal["thing", "policy"], ...], Listed] = Field(
        default=(), description="`thing`, `policy`."
    )
    namespaces: NameList = Field(default=(), description="Namespaces; `*` is any text, `?` one character.")
    subjects: NameList = Field(default=(), description="Authorization subjects, with the same wildcards.")

    @property
    def rule(self) -> creation.CreationRule:
        """As `connectivity.security.creation` judges by it."""
        return creation.CreationRule.of(self.types, self.namespaces, self.subjects)


class CreationSettings(Section):
    """Rules that decide which subjects can create things and policies in which namespaces.

    A creation is allowed if a rule in `grant` applies to it, and no rule in `revoke` applies. A rule is
    `{types, namespaces, subjects}`; an absent or empty list matches everything. See [Creation](quotas.md#creation).
    """

    grant: tuple[CreationRuleSettings, ...] = Field(
        default=(CreationRuleSettings(),),
        description="Rules that allow creations. Default: any client can create things and policies.",
    )
    revoke: tuple[CreationRuleSettings, ...] = Field(
        default=(), description="Rules that refuse creations which `grant` allows."
    )

    @property
    def rules(self) -> creation.CreationRules:
        """As `connectivity.security.creation` judges by them."""
        return creation.CreationRules(tuple(it.rule for it in self.grant), tuple(it.rule for it in self.revoke))


class SparkMode(str, Enum):
    """The process that runs the pipeline from the journal into the lake."""

    EMBEDDED = "embedded"
    EXTERNAL = "external"
    OFF = "off"


class TokenIntegrationSettings(Section):
    """The subject that the action `activateTokenIntegration` adds to a policy entry.

    See [Token integration](policies.md#token-integration).
    """

    subject: Annotated[str, AfterValidator(check_template)] = Field(
        default=DEFAULT.subject,
        description="The subject, with the placeholders `policy-entry:label`, `request:subjectId` (the first subject of the "
        "sender) and `header:NAME`.",
    )
    lifetime: PositiveDuration = Field(
        default=DEFAULT.lifetime,
        description="How long the subject is valid; its expiry is rounded up to a whole hour.",
    )

    @property
    def rule(self) -> TokenIntegration:
        """As the action applies it."""
        return TokenIntegration(self.subject, self.lifetime)


def _is_on_this_host(master: str) -> str:
    """A Spark master whose workers can open the journal. Raises ValueError."""
    if LOCAL_MASTER.fullmatch(master) is None:
        raise ValueError(EXPECTED_MASTER)
    return master


class SparkSettings(Section):
    """Whether and where Spark runs."""

    mode: Annotated[SparkMode, BeforeValidator(read_off_as_text, json_schema_input_type=SparkMode | Literal[False])] = (
        Field(
            default_factory=lambda: SparkMode.EMBEDDED if Extra.SPARK.is_installed else SparkMode.OFF,
            description="`embedded`: the service runs the pipeline; `external`: another process runs it; `off`: no lake, "
            "the journal keeps everything. Default: `embedded` if the extra `spark` is installed, else `off`.",
        )
    )
    master: Annotated[str, AfterValidator(_is_on_this_host)] = Field(
        default="local[*]",
        description="Spark's master: `local[*]`, or `local[N]` for N cores. Other masters are refused: the journal "
        "is an SQLite file, which only processes on this host can open.",
    )
    remote: Annotated[str, TextForm(r"^sc://[^/;\s]+", "an address such as sc://spark.example:15002")] | None = Field(
        default=None,
        description="The address of a Spark Connect server that runs Spark queries instead of the pipeline, such as "
        "`sc://spark.example:15002`. The server needs Delta Lake, and access to `data_dir` as the same user.",
    )
    jars: AnyPath | None = Field(
        default=None,
        description="Folder of Delta's jars, where `connectivity pipeline install` puts them. By default a folder in the "
        "user's cache (`$XDG_CACHE_HOME`, else `~/.cache`).",
    )
    mirror: (
        Annotated[str, TextForm(r"^(https?|file)://", "an address that begins with https://, http:// or file://")]
        | None
    ) = Field(
        default=None, description="Address of the Maven repository that has Delta's jars, instead of the central one."
    )
    memory: Annotated[str, BeforeValidator(read_memory, json_schema_input_type=MemoryForm)] = Field(
        default=JAVA_MEMORY,
        description="Memory for objects of Spark's Java process, such as `1g` or `1500m`. The process needs 0.7 GB more.",
    )


class LogSettings(Section):
    """The format and level of the log."""

    format: Annotated[Literal["text", "json"], BeforeValidator(lower_text)] = Field(
        default="text", description="`text` for people, `json` for machines."
    )
    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower_text)] = Field(
        default="info", description="The least important level that is logged."
    )


class TracingSettings(Section):
    """Traces with OpenTelemetry; off without an endpoint. Tracing needs the extra `tracing`."""

    endpoint: Annotated[str, TextForm(r"^https?://[^/\s]+", "an address such as http://localhost:4318")] | None = Field(
        default=None,
        description="The collector, such as `http://localhost:4318` (OTLP over HTTP). Without it, tracing is off.",
    )
    ratio: Ratio = Field(default=1.0, description="Fraction of the traces started by this service that are recorded.")
    service: Annotated[str, Field(min_length=1)] = Field(default="connectivity", description="Service name in traces.")


class Settings(BaseSettings):
    """All settings. `Settings()` reads environment variables only; `load_settings` also a file."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    connections_dir: AnyPath = Field(
        default=Path("connections"),
        description="Folder of connection files. The service reads changed files while it runs. Only the default "
        "folder may be absent.",
    )
    data_dir: AnyPath = Field(default=Path("data"), description="Folder of journal and lake.")
    api: ApiSettings = ApiSettings()
    journal: JournalSettings = JournalSettings()
    lake: LakeSettings = LakeSettings()
    subscriptions: SubscriptionSettings = SubscriptionSettings()
    search: SearchSettings = SearchSettings()
    reconnect: ReconnectSettings = ReconnectSettings()
    source: SourceSettings = SourceSettings()
    limits: LimitSettings = LimitSettings()
    quotas: tuple[QuotaRule, ...] = Field(
        default=(),
        description="What each namespace and each subject may use: a list of rules, see [Quotas](quotas.md#quotas). "
        "The first rule that matches a namespace or a subject applies to that namespace or subject.",
    )
    secrets: SecretSettings = SecretSettings()
    hosts: HostSettings = HostSettings()
    creation: CreationSettings = CreationSettings()
    token_integration: TokenIntegrationSettings = TokenIntegrationSettings()
    spark: SparkSettings = SparkSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the library's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment variables override the given values, which come from the file."""
        return env_settings, init_settings


def model_of(field: FieldInfo) -> type[BaseModel]:
    """The group that a field holds."""
    candidates = (field.annotation, *get_args(field.annotation))
    return next(it for it in candidates if isinstance(it, type) and issubclass(it, BaseModel))
