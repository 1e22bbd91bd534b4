#!/usr/bin/env bash
# Sets up .venv: this project with all its extras, and .venv/java, a link to the Java that Spark runs on.
# Nothing to do: returns at once. Root on Debian: installs what is missing. Elsewhere: says what is, and fails.
# Python 3.11 since PySpark 4.3 needs it (the library itself runs on 3.10), Java 17 since Spark does. PYTHON and
# JAVA_HOME say which to take.
# With the name of a folder, only a Python with pip is set up in that folder, which needs neither Java nor packages.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-}

say() { printf 'setup: %s\n' "$*" >&2; }

is_ready() {
  [ .venv/ready -nt pyproject.toml ] && [ .venv/ready -nt tools/bootstrap.sh ] &&
    [ "$(cat .venv/ready)" = "$PWD" ] && [ -x .venv/bin/python ] && [ -x .venv/java/bin/java ]
}

find_python() {
  local name
  for name in ${PYTHON:-} python3 python3.{14,13,12,11}; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s\n' "$name"
      return
    fi
  done
  return 1
}

find_java_home() {
  local java settings version
  for java in "${JAVA_HOME:-}/bin/java" "$(command -v java || true)" /usr/lib/jvm/*/bin/java /opt/java/*/bin/java \
    /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java /opt/homebrew/opt/openjdk*/bin/java; do
    [ -x "$java" ] || continue
    settings=$("$java" -XshowSettings:properties -version 2>&1) || continue
    version=$(sed -n 's/.*java\.specification\.version = \([0-9]*\).*/\1/p' <<<"$settings")
    if [ "${version:-0}" -ge 17 ]; then
      sed -n 's/.*java\.home = //p' <<<"$settings"
      return
    fi
  done
  return 1
}

java_package() {
  if apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
    echo openjdk-17-jre-headless
  else
    echo default-jre-headless
  fi
}

# Prints the Debian packages that would bring what is missing; nothing if all is there.
missing_packages() {
  local python
  if python=$(find_python); then
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "$(basename "$python")-venv"
  elif command -v python3 >/dev/null; then
    echo python3.11 python3.11-venv # python3 is older
  else
    echo python3 python3-venv
  fi
  [ -n "$folder" ] || find_java_home >/dev/null || java_package
}

quietly() {
  local log
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null || { cat "$log" >&2; rm -f "$log"; return 1; }
  rm -f "$log"
}

install_missing() {
  local missing package needed=" and Java 17+ are"
  [ -z "$folder" ] || needed=" is"
  [ -n "$(missing_packages)" ] || return 0
  if [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ] && command -v apt-get >/dev/null; then
    quietly apt-get update
    for package in $(missing_packages); do
      say "installing $package with apt-get"
      DEBIAN_FRONTEND=noninteractive quietly apt-get install -y --no-install-recommends "$package"
    done
  fi
  missing=$(missing_packages | xargs)
  [ -z "$missing" ] || { say "Python 3.11+$needed needed; install $missing (Debian's name), then run make again"; exit 1; }
}

install_project() {
  local python=$1
  # pip asks rustc, where there is one, for its version, and rustup then makes a folder for itself
  export RUSTUP_HOME=$PWD/.venv/cache/rustup
  if [ "$(cat .venv/ready 2>/dev/null)" != "$PWD" ]; then # never finished, or finished where this folder was before
    "$python" -m venv --clear .venv
  fi
  say "installing distlog and what it needs into .venv, which takes a minute or two (Spark alone is 450 MB)"
  # Python compiles what is imported when it is, which is less than a third of all
  .venv/bin/python -m pip install --quiet --no-cache-dir --use-pep517 \
    --no-compile --disable-pip-version-check -e '.[spark,s3,cli,gateway,metrics,plot,duckdb,avro,protobuf,test,bench,docs]'
  ln -sfn "$(find_java_home)" .venv/java
  printf '%s\n' "$PWD" >.venv/ready
}

if [ -n "$folder" ]; then
  install_missing
  "$(find_python)" -m venv "$folder"
  exit
fi
if is_ready; then exit 0; fi
if command -v flock >/dev/null; then
  exec 9<pyproject.toml # a second make waits here, then finds the work done
  flock 9
  if is_ready; then exit 0; fi
fi
install_missing
install_project "$(find_python)"
