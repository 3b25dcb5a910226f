# Functions that the tools share: output, and the system's packages. Sourced, not run.
# shellcheck shell=bash

say() { printf '· %s\n' "$*"; }
fail() {
  printf '✗ %s\n' "$*" >&2
  exit 1
}

# Runs a command as root, or by sudo if that needs no password. Fails if neither is possible.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif sudo -n true 2>/dev/null; then
    sudo -n "$@"
  else
    return 1
  fi
}

# Installs Debian or Ubuntu packages without starting their services, because the tools start the programs themselves. Waits up
# to five minutes for another installation. Prints the log after an error. Fails without apt, without root permission, or for
# an unknown package.
install_packages() {
  local policy=/usr/sbin/policy-rc.d log status=0
  command -v apt-get >/dev/null && as_root true || return 1
  say "system packages: $*"
  log=$(mktemp)
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null && as_root chmod +x "$policy"
  else
    policy=
  fi
  { as_root apt-get update -q && as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null || status=$?
  [ -z "$policy" ] || as_root rm -f "$policy"
  [ "$status" -eq 0 ] || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

# uv does not read pip's configuration, so this passes pip's index and certificates to uv.
configure_uv() {
  local index authority
  index=${PIP_INDEX_URL:-$(pip_setting "$1" index-url)}
  authority=${PIP_CERT:-$(pip_setting "$1" cert)}
  if [ -n "$index" ] && [ -z "${UV_INDEX_URL:-}${UV_DEFAULT_INDEX:-}" ]; then export UV_DEFAULT_INDEX=$index; fi
  if [ -n "$authority" ] && [ -z "${SSL_CERT_FILE:-}" ]; then export SSL_CERT_FILE=$authority; fi
}
pip_setting() { "$1" -m pip config get "global.$2" 2>/dev/null || true; }
