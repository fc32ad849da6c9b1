
# The driver's libraries must stay those of the module that the kernel has loaded: an
# update of them alone, as Ubuntu makes by itself, leaves the GPU useless until a boot.
dpkg-query -W -f '${Package} ${db:Status-Status}\n' | sed -n 's/^\([^ ]*nvidia[^ ]*\) installed$/\1/p' | xargs -r apt-mark hold

if ! command -v nvidia-ctk >/dev/null; then
	source=https://nvidia.github.io/libnvidia-container
	key=/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg
	curl --fail --silent --show-error --location --retry 5 "$source/gpgkey" | gpg --dearmor --yes --output "$key"
	echo "deb [signed-by=$key] $source/stable/deb/\$(ARCH) /" >/etc/apt/sources.list.d/nvidia-container-toolkit.list
	install update
	install install nvidia-container-toolkit
fi
if ! docker info --format '{{json .Runtimes}}' | grep -q nvidia; then
	nvidia-ctk runtime configure --runtime=docker
	systemctl restart docker
fi

# Images of AWS mount the machine's own disks here, which are many times as fast as the one
# that it boots from: what engines load is kept there. It goes with the machine.
fast=/opt/dlami/nvme
if mountpoint -q "$fast"; then
	mkdir -p -m 0700 /var/lib/skyserve
	for name in cache weights; do
		mkdir -p "$fast/skyserve/$name" "/var/lib/skyserve/$name"
		mountpoint -q "/var/lib/skyserve/$name" || mount --bind "$fast/skyserve/$name" "/var/lib/skyserve/$name"
	done
fi
