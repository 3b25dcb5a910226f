# What fetches Java parts: Ivy, from the system's packages or from pyspark, into a folder whose jars are checked against a
# file of hashes. Sourced after system.sh, not run.
# shellcheck shell=bash

find_ivy() { ls .venv/lib/python3*/site-packages/pyspark/jars/ivy-*.jar /usr/share/java/ivy.jar 2>/dev/null | head -1; }

# check_jars FOLDER SUMS: whether a folder holds the jars that a file of hashes names, and no others, which Java would load.
check_jars() {
  local sums
  sums=$(realpath "$2")
  (cd "$1" && sha256sum --check --quiet "$sums" && diff \
    <(sed 's/^[0-9a-f]*  //' "$sums" | LC_ALL=C sort) <(find . -iname '*.jar' -printf '%P\n' | LC_ALL=C sort))
}

# Whether a folder holds exactly these jars, and there is a Java to run them.
has_jars() {
  [ -d "$1" ] && check_jars "$1" "$2" >/dev/null 2>&1 && command -v java >/dev/null
}

# A Java of this version or later, and Ivy, installed where they are missing. $2 says what they are for.
need_java() {
  local missing=() found
  command -v java >/dev/null || missing+=(default-jre-headless)
  [ -n "$(find_ivy)" ] || missing+=(ivy)
  if [ ${#missing[@]} -gt 0 ]; then
    install_packages "${missing[@]}" || fail "$2: install ${missing[*]} (sudo apt-get install ${missing[*]})"
  fi
  found=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
  [ "${found:-0}" -ge "$1" ] || fail "$2: needs Java $1 or later, this is Java ${found:-unknown}"
}

# fetch_jar FOLDER ORGANISATION NAME VERSION [OPTION…]: a jar and, unless told otherwise, what it depends on.
# Ivy has a cache of its own: it would read others' half-filled ones too.
fetch_jar() {
  local folder=$1 log
  shift
  log=$(mktemp)
  java -jar "$(find_ivy)" -cache "$PWD/.run/ivy" -dependency "$1" "$2" "$3" -confs default "${@:4}" \
    -retrieve "$PWD/$folder/[artifact]-[revision].[ext]" >"$log" 2>&1 || {
    cat "$log" >&2
    rm -f "$log"
    fail "$2 $3 could not be fetched"
  }
  rm -f "$log"
}

# take_jars PART FOLDER SUMS: what was fetched takes its place if it is what is expected.
take_jars() {
  check_jars "$1" "$3" || fail "the jars fetched are not exactly those of $3"
  rm -rf "$2"
  mv "$1" "$2"
  rm -rf .run/ivy
}
