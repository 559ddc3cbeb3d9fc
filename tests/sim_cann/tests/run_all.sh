#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs test programs and adds up their closing lines. Each runs with threads and with inline streams, unless its
# source names its settings:   // RUN: SIM_DEVICES=2   (one run per line)
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
passed=0 failed=0
for program in "$@"; do
  mapfile -t runs < <(sed -n 's|^// RUN: *||p' "$here/$(basename "$program").cpp")
  [ ${#runs[@]} -gt 0 ] || runs=("SIM_STREAM_MODE=thread")
  for settings in "${runs[@]}"; do
    output=$(env $settings timeout 300 "$program" 2>"$errors")
    status=$?
    line=$(tail -1 <<<"$output")
    if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
      passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
    else
      failed=$((failed + 1))
    fi
    if [ $status != 0 ]; then
      [[ $line == *", 0 failed" ]] && failed=$((failed + 1))
      echo "== $(basename "$program") $settings: exit code $status"
      echo "$output"
      tail -60 "$errors"
    fi
  done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
