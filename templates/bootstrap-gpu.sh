
# The driver's libraries must match the loaded kernel module: an unattended upgrade of the
# libraries alone makes the GPU unusable until a reboot.
dpkg-query -W -f '${Package} ${db:Status-Status}\n' | sed -n 's/^\([^ ]*nvidia[^ ]*\) installed$/\1/p' | xargs -r apt-mark hold

# The repository's key is pinned. The fingerprint is that of $source/gpgkey, "NVIDIA CORPORATION
# (Open Source Projects)", as of November 2026.
if ! command -v nvidia-ctk >/dev/null; then
	source=https://nvidia.github.io/libnvidia-container
	pinned=C95B321B61E88C1809C4F759DDCAE044F796ECB0
	key=/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg
	fetched=$(mktemp)
	curl --fail --silent --show-error --location --retry 5 --output "$fetched" "$source/gpgkey"
	found=$(gpg --batch --with-colons --show-keys "$fetched" | awk -F: '$1 == "pub" { primary = 1 } $1 == "fpr" && primary { print $10; primary = 0 }')
	if [ "$found" != "$pinned" ]; then
		rm -f "$fetched"
		echo "skyserve: $source/gpgkey must have the key $pinned, got $found" >&2
		exit 1
	fi
	gpg --batch --yes --dearmor --output "$key" "$fetched"
	rm -f "$fetched"
	echo "deb [signed-by=$key] $source/stable/deb/\$(ARCH) /" >/etc/apt/sources.list.d/nvidia-container-toolkit.list
	install update
	install install nvidia-container-toolkit
fi
if ! docker info --format '{{json .Runtimes}}' | grep -q nvidia; then
	nvidia-ctk runtime configure --runtime=docker
	systemctl restart docker
fi

# At the first boot Docker may run before the local disks are mounted; later boots mount them first.
if ! systemctl is-active --quiet skyserve-disks; then
	systemctl stop docker.socket docker containerd || true # one of them may not exist
	systemctl enable skyserve-disks
	systemctl start skyserve-disks
	systemctl start docker
fi
