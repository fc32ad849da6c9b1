
install() { DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@"; }
if ! command -v docker >/dev/null; then
	install update
	install install docker.io
fi

# Containers must never reach the machine's own credentials. Docker restarts containers
# early in a boot, so the rule is set before Docker starts. Requests of the machine itself do
# not pass this chain. In some clouds the address also serves DNS, so only HTTP is blocked.
close='iptables -w -t raw -C PREROUTING -d 169.254.169.254 -p tcp --dport 80 -j DROP 2>/dev/null || iptables -w -t raw -I PREROUTING -d 169.254.169.254 -p tcp --dport 80 -j DROP'
dropin=/etc/systemd/system/docker.service.d/skyserve.conf
mkdir -p "${dropin%/*}"
printf '[Service]\nExecStartPre=/bin/sh -c "%s"\n' "$close" >"$dropin"
systemctl daemon-reload
sh -c "$close"
systemctl is-active --quiet docker || systemctl start docker
