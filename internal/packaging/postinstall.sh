#!/bin/sh
# Run by deb and rpm after the files are in place. The service is neither enabled nor started.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
	systemd-sysusers /usr/lib/sysusers.d/skyserve.conf
elif ! getent passwd skyserve >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/skyserve --no-create-home --shell /usr/sbin/nologin skyserve
fi
chown root:skyserve /etc/skyserve/lb.yaml
chmod 0640 /etc/skyserve/lb.yaml
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart skyserve-lb.service # after an upgrade, if it runs
fi
