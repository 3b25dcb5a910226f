# The service as an image: its own files and what it needs at run time, checked against the hashes of constraints.txt.
#
#     docker build --tag connectivity .
#     docker run --read-only --tmpfs /tmp --volume connectivity-data:/data --volume ./connections:/connections:ro connectivity
#
# It runs as user 10001, writes to /data alone, and takes its settings from CONNECTIVITY_… variables. There is no Java in
# it, so the journal keeps everything.

FROM python:3.13.7-slim-bookworm AS build
WORKDIR /build
COPY constraints.txt ./
# What builds: uv and the build backend, by the hashes of the same file.
RUN awk '/^[a-z]/ { wanted = /^(uv|setuptools)==/ } wanted' constraints.txt >build.txt \
    && pip install --quiet --no-cache-dir --no-deps --require-hashes --requirement build.txt
COPY pyproject.toml ./
ENV VIRTUAL_ENV=/app
RUN python -m venv --without-pip /app \
    && uv pip install --quiet --no-cache --compile-bytecode \
        --require-hashes --requirements pyproject.toml --constraints constraints.txt
COPY README.md LICENSE ./
COPY connectivity connectivity
COPY mappings mappings
COPY spark_store spark_store
RUN pip wheel --quiet --no-cache-dir --no-deps --no-build-isolation --wheel-dir wheels . \
    && uv pip install --quiet --no-cache --compile-bytecode --no-deps wheels/*.whl

FROM python:3.13.7-slim-bookworm
RUN groupadd --gid 10001 connectivity \
    && useradd --uid 10001 --gid connectivity --no-create-home --home-dir /data --shell /usr/sbin/nologin connectivity \
    && install --directory --owner=connectivity --group=connectivity --mode=0750 /data \
    && install --directory /connections
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CONNECTIVITY_CONNECTIONS_DIR=/connections \
    CONNECTIVITY_DATA_DIR=/data \
    CONNECTIVITY_LOG__FORMAT=json \
    CONNECTIVITY_SPARK__MODE=off
USER 10001:10001
WORKDIR /data
VOLUME ["/data", "/connections"]
EXPOSE 8080
STOPSIGNAL SIGTERM
# Ready, and not only alive: the store can be written, and every connection has been tried. An answer but 200 raises.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as web; web.urlopen('http://127.0.0.1:' + os.environ.get('CONNECTIVITY_API__PORT', '8080') + '/health/ready', timeout=4)"]
ENTRYPOINT ["connectivity"]
CMD ["serve"]
