#!/usr/bin/env bash
# Builds the programs that observe/ configures from their Go modules, once, outside the clone, and says where they are.
# What can't be built is said on stderr; the caller looks which of otelcol, jaeger, prometheus and promtool are there.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/tracing-spec-decode"
mkdir -p "$cache/bin"
export GOFLAGS="-p=2 -mod=mod -buildvcs=false"

JAEGER=v1.76.0
PROMETHEUS=v0.316.0 # Prometheus 3.16
TAGS=remove_all_sd # Prometheus without the clients of clouds: half of what there is to compile.

# For all of them. A build that stands still, on a network that does not answer for one, is given up then; what was
# compiled until then is in Go's cache.
BUDGET="${OBSERVE_BUILD_SECONDS:-3600}"

# Each in a module of its own, so that none decides the others' dependencies. A link in bin/ names the version built.
build() { # NAME VERSION PACKAGE...
  local name=$1 version=$2 work="$cache/build/$1-$2"
  shift 2
  [ -e "$work/done" ] && return
  command -v go >/dev/null || { echo "no Go toolchain: $name is not built" >&2; return; }
  local left=$((BUDGET - SECONDS))
  [ "$left" -gt 0 ] || { echo "no time left: $name is not built" >&2; return; }
  echo "building $name $version from its Go modules (minutes, once)" >&2
  mkdir -p "$work/bin"
  if (cd "$work" && modules "$name" "$version" "$@" &&
      nice timeout "$left" go build -trimpath -tags "$TAGS" -ldflags "-s -w" -o "$work/bin/" "$@") >"$work/log" 2>&1
  then
    ln -sf "$work"/bin/* "$cache/bin/" && touch "$work/done"
  elif [ $? = 124 ]; then
    echo "no time left: $name is not built" >&2
  else
    echo "$name could not be built:" >&2
    tail -n 3 "$work/log" >&2
  fi
}

modules() { # NAME VERSION PACKAGE...: writes go.mod
  case $1 in
    otelcol) cp "$here"/collector/{go.mod,main.go} . ;;
    jaeger) tools example.invalid/jaeger "github.com/jaegertracing/jaeger@$2" "${@:3}" ;;
    prometheus) tools example.invalid/prometheus "github.com/prometheus/prometheus@$2" "${@:3}" ;;
  esac
}

tools() { # MODULE REQUIREMENT PACKAGE...
  rm -f go.mod
  go mod init "$1" && go mod edit -require "$2"
  local package
  for package in "${@:3}"; do go mod edit -tool "$package"; done
}

build otelcol "$(cat "$here"/collector/* | sha256sum | cut -c1-12)" .
build prometheus "$PROMETHEUS" github.com/prometheus/prometheus/cmd/{prometheus,promtool}
build jaeger "$JAEGER" github.com/jaegertracing/jaeger/cmd/jaeger
echo "$cache/bin"
