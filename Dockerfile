# Two images of the service. Python packages are checked against the hashes in constraints.txt.
#
# slim   brokers, listeners, journal, search, API, mapping scripts, traces; the journal keeps all events
# lake   also Delta Lake, with Java, Spark and Delta's jars; older events are in the lake
#
#     docker build --tag broker-connectivity:0.1.0-slim .
#     docker build --tag broker-connectivity:0.1.0-lake --target lake .
#     docker run --read-only --tmpfs /tmp --volume connectivity-data:/data --volume ./connections:/connections:ro broker-connectivity:0.1.0-slim
#
# The service runs as user 10001, writes only to /data, and reads its settings from CONNECTIVITY_… environment variables.

FROM python:3.13.7-slim-bookworm AS tools
WORKDIR /build
COPY constraints.txt ./
# uv and the build backend, checked against the hashes of the same file.
RUN awk '/^[a-z]/ { wanted = /^(uv|setuptools)==/ } wanted' constraints.txt >build.txt \
    && pip install --quiet --no-cache-dir --no-deps --require-hashes --requirement build.txt
COPY pyproject.toml ./

FROM tools AS wheel
COPY README.md LICENSE ./
COPY tools/build_backend.py tools/build_backend.py
COPY connectivity connectivity
COPY mappings mappings
COPY spark_store spark_store
RUN pip wheel --quiet --no-cache-dir --no-deps --no-build-isolation --wheel-dir wheels .

FROM tools AS slim-packages
ENV VIRTUAL_ENV=/app
RUN python -m venv --without-pip /app \
    && uv pip install --quiet --no-cache --compile-bytecode --extra javascript --extra tracing \
        --require-hashes --requirements pyproject.toml --constraints constraints.txt
COPY --from=wheel /build/wheels wheels
RUN uv pip install --quiet --no-cache --compile-bytecode --no-deps wheels/*.whl

FROM tools AS lake-packages
ENV VIRTUAL_ENV=/app
RUN python -m venv --without-pip /app \
    && uv pip install --quiet --no-cache --compile-bytecode --extra all \
        --require-hashes --requirements pyproject.toml --constraints constraints.txt
COPY --from=wheel /build/wheels wheels
RUN uv pip install --quiet --no-cache --compile-bytecode --no-deps wheels/*.whl

FROM python:3.13.7-slim-bookworm AS base
LABEL org.opencontainers.image.title="broker-connectivity" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.base.name="docker.io/library/python:3.13.7-slim-bookworm"
RUN groupadd --gid 10001 connectivity \
    && useradd --uid 10001 --gid connectivity --no-create-home --home-dir /data --shell /usr/sbin/nologin connectivity \
    && install --directory --owner=connectivity --group=connectivity --mode=0750 /data \
    && install --directory /connections
ENV PATH=/app/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CONNECTIVITY_CONNECTIONS_DIR=/connections \
    CONNECTIVITY_DATA_DIR=/data \
    CONNECTIVITY_LOG__FORMAT=json
WORKDIR /data
VOLUME ["/data", "/connections"]
EXPOSE 8080
STOPSIGNAL SIGTERM
# Readiness, not only liveness: the store is writable, and the service has tried to open every connection. `urlopen` raises
# for an error status.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as web; web.urlopen('http://127.0.0.1:' + os.environ.get('CONNECTIVITY_API__PORT', '8080') + '/health/ready', timeout=4)"]
ENTRYPOINT ["connectivity"]
CMD ["serve"]

FROM base AS lake
LABEL org.opencontainers.image.description="Connects digital twins to message brokers, and keeps their history in Delta Lake."
# `17.*` allows Debian's security updates. The package needs the folder of manual pages, which slim images lack.
RUN install --directory /usr/share/man/man1 \
    && apt-get update \
    && apt-get install --yes --no-install-recommends "openjdk-17-jre-headless=17.*" \
    && rm -rf /var/lib/apt/lists/*
COPY --from=lake-packages /app /app
ENV CONNECTIVITY_SPARK__JARS=/opt/delta
# Downloads Delta's jars, and checks them against the checksums in the program.
RUN connectivity pipeline install
USER 10001:10001

# The default target, because it is the last one.
FROM base AS slim
LABEL org.opencontainers.image.description="Connects digital twins to message brokers, and keeps their history in a journal."
COPY --from=slim-packages /app /app
USER 10001:10001
