# Functions that download jars with Ivy and check them against a file of hashes. Ivy comes from the system's packages or from
# pyspark. Sourced after system.sh, not run.
# shellcheck shell=bash

find_ivy() { ls .venv/lib/python3*/site-packages/pyspark/jars/ivy-*.jar /usr/share/java/ivy.jar 2>/dev/null | head -1; }

# check_jars FOLDER SUMS: whether a folder has exactly the jars in a file of hashes. Java would load other jars too.
check_jars() {
  local sums
  sums=$(realpath "$2")
  (cd "$1" && sha256sum --check --quiet "$sums" && diff \
    <(sed 's/^[0-9a-f]*  //' "$sums" | LC_ALL=C sort) <(find . -iname '*.jar' -printf '%P\n' | LC_ALL=C sort))
}

# has_jars FOLDER SUMS: whether a folder has exactly these jars, and Java is installed.
has_jars() {
  [ -d "$1" ] && check_jars "$1" "$2" >/dev/null 2>&1 && command -v java >/dev/null
}

# need_java VERSION MESSAGE: installs Java and Ivy if they are missing, and fails with MESSAGE if Java is older than VERSION.
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

# fetch_jar FOLDER ORGANIZATION NAME VERSION [OPTION…]: downloads a jar and, unless an option excludes them, its dependencies.
# It uses a separate cache, because Ivy also reads incomplete caches of other programs.
fetch_jar() {
  local folder=$1 log
  shift
  log=$(mktemp)
  java -jar "$(find_ivy)" -cache "$PWD/.run/ivy" -dependency "$1" "$2" "$3" -confs default "${@:4}" \
    -retrieve "$PWD/$folder/[artifact]-[revision].[ext]" >"$log" 2>&1 || {
    cat "$log" >&2
    rm -f "$log"
    fail "$2 $3 could not be downloaded"
  }
  rm -f "$log"
}

# take_jars PART FOLDER SUMS: checks the downloaded jars in PART, and moves them to FOLDER.
take_jars() {
  check_jars "$1" "$3" || fail "the downloaded jars are not exactly those of $3"
  rm -rf "$2"
  mv "$1" "$2"
  rm -rf .run/ivy
}
