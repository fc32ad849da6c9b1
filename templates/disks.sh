#!/bin/sh
# Stores images, weights and caches on the machine's local disks, if it has any. It runs at every boot
# before Docker starts: local disks are empty after a stop. Everything on them can be downloaded again.
set -eu
fast=/mnt/skyserve
ours=skyserve

# The names of AWS's instance store and of Google's local SSDs (NVMe and SCSI); never network disks.
local_disks() {
	for link in /dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_* /dev/disk/by-id/google-local-nvme-ssd-* /dev/disk/by-id/google-local-ssd-*; do
		case $link in *-part[0-9]*) continue ;; esac
		if [ -e "$link" ]; then readlink -f "$link"; fi
	done | sort -u
}

property() { blkid -p -o value -s "$1" "$2" || true; }

format() { mkfs.ext4 -q -F -m 0 -L "$ours" -E nodiscard,lazy_itable_init=1 "$1"; }

# array prints the RAID 0 array of several disks, which it creates if there is none.
array() {
	found=$(lsblk -nrpo NAME,TYPE "$1" | awk '$2 == "raid0" { print $1; exit }')
	if [ -z "$found" ]; then
		found=/dev/md/$ours
		mdadm --assemble "$found" "$@" >&2 || mdadm --create "$found" --run --level=0 --raid-devices=$# "$@" >&2
	fi
	echo "$found"
}

mount_disks() {
	for disk; do
		case $(property TYPE "$disk")/$(property LABEL "$disk") in
		/ | linux_raid_member/* | ext4/"$ours") ;;
		*)
			echo "skyserve: $disk is in use, so the boot disk is used" >&2
			exit 0
			;;
		esac
	done
	if [ $# -gt 1 ] && ! command -v mdadm >/dev/null && ! DEBIAN_FRONTEND=noninteractive apt-get -q -y install mdadm; then
		echo "skyserve: mdadm is missing, so only $1 is used" >&2
		set -- "$1"
	fi
	device=$1
	if [ $# -gt 1 ]; then device=$(array "$@"); fi
	if [ "$(property LABEL "$device")" != "$ours" ]; then format "$device"; fi
	mkdir -p "$fast"
	mount -o noatime "$device" "$fast" || { format "$device" && mount -o noatime "$device" "$fast"; }
}

# AWS's images for GPUs mount the instance store themselves.
if mountpoint -q /opt/dlami/nvme; then
	fast=/opt/dlami/nvme
elif ! mountpoint -q "$fast"; then
	disks=$(local_disks)
	if [ -z "$disks" ]; then exit 0; fi
	# shellcheck disable=SC2086 # one word for each disk
	mount_disks $disks
fi
[ -d /var/lib/skyserve ] || mkdir -m 0700 /var/lib/skyserve
for to in skyserve/cache skyserve/weights docker containerd; do
	mkdir -p "$fast/skyserve/${to##*/}" "/var/lib/$to"
	mountpoint -q "/var/lib/$to" || mount --bind "$fast/skyserve/${to##*/}" "/var/lib/$to"
done
