#!/bin/sh
# dpkg calls it with "configure" and, at an upgrade, the version before; rpm with the
# number of versions that are installed then.
set -e

if ! getent passwd select-service >/dev/null; then
  useradd --system --user-group --no-create-home --home-dir /var/lib/select-service --shell /usr/sbin/nologin select-service
fi

# Keys and tokens in there are for the service only.
if [ "$(stat -c %G /etc/select-service)" = root ]; then
  chgrp select-service /etc/select-service
  chmod 0750 /etc/select-service
fi

command -v systemctl >/dev/null || exit 0
case "$1-$2" in
configure- | 1-) systemctl preset select-service.service || true ;; # whether it is on from now on is the system's policy
esac
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  if systemctl is-enabled --quiet select-service.service; then
    systemctl restart select-service.service || true # the log says why not
  else
    systemctl try-restart select-service.service || true
  fi
fi
