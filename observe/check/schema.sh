#!/usr/bin/env bash
# The dashboard against Grafana's schema, in two ways that see different mistakes: a round trip through the foundation
# SDK drops every field that it does not know, and TypeScript finds values of a wrong type.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dashboard=$(cd "$here/../grafana/dashboards" && pwd)/spec-decode.json
cache="${XDG_CACHE_HOME:-$HOME/.cache}/tracing-spec-decode/grafana"
mkdir -p "$cache"
status=0

# Pinned: without a version pip takes one of an older schema, whose number sorts first.
if [ ! -x "$cache/venv/bin/python" ] || ! "$cache/venv/bin/python" -c 'import grafana_foundation_sdk' 2>/dev/null; then
  python3 -m venv "$cache/venv" && timeout 300 "$cache/venv/bin/pip" install -q grafana-foundation-sdk==0.0.21
fi >"$cache/pip.log" 2>&1
if "$cache/venv/bin/python" -c 'import grafana_foundation_sdk' 2>/dev/null; then
  "$cache/venv/bin/python" "$here/round_trip.py" "$dashboard" || status=1
else
  echo "skip  the dashboard's round trip through the schema: no foundation SDK to be had here"
fi

if [ ! -d "$cache/npm/node_modules/@grafana/schema" ] && command -v npm >/dev/null; then
  mkdir -p "$cache/npm" && timeout 300 npm --prefix "$cache/npm" install --silent @grafana/schema@13.2.3 typescript@5
fi >"$cache/npm.log" 2>&1
if [ -d "$cache/npm/node_modules/@grafana/schema" ]; then
  {
    echo 'import type { AnnotationQuery, Dashboard } from "@grafana/schema";'
    # What Prometheus adds to an annotation is in its plugin, not in the schema.
    echo 'type Mark = AnnotationQuery & { expr: string; step: string; titleFormat: string; textFormat: string };'
    echo 'type Whole = Omit<Dashboard, "annotations"> & { annotations: { list: Mark[] } };'
    # JSON has the values of enums, not their names.
    echo 'type Plain<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;'
    echo 'export const dashboard: Plain<Whole> ='
    cat "$dashboard"
  } >"$cache/npm/dashboard.ts"
  if found=$(cd "$cache/npm" && npx tsc --noEmit --strict --skipLibCheck --moduleResolution bundler --module esnext \
      --target es2022 dashboard.ts 2>&1); then
    echo "ok    the dashboard's types: those of @grafana/schema 13.2.3"
  else
    echo "FAIL  the dashboard's types: $found"
    status=1
  fi
else
  echo "skip  the dashboard's types: no npm, or no @grafana/schema, to be had here"
fi
exit $status
