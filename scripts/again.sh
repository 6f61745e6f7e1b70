#!/usr/bin/env bash
# again.sh COMMAND...: runs a command that fetches something from a registry, and if it fails two more
# times, as registries answer an error now and then. The status is that of the last time.
for pause in 5 20; do
  "$@" && exit
  printf 'again.sh: %s has failed; once more in %s s\n' "$1" "$pause" >&2
  sleep "$pause"
done
exec "$@"
