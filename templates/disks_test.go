package templates_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"skyserve/templates"
)

// diskMachine is a machine that starts with fake programs: they keep its mounts, and the type and label of
// each disk.
type diskMachine struct {
	t    *testing.T
	dir  string
	path string // of programs
}

func newDiskMachine(t *testing.T, links ...string) *diskMachine {
	t.Helper()
	m := &diskMachine{t: t, dir: t.TempDir()}
	m.path = m.dir + "/bin"
	for _, folder := range []string{"bin", "by-id", "dev", "disks"} {
		if err := os.Mkdir(filepath.Join(m.dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i, link := range links {
		disk := m.disk(i)
		m.write(disk, "")
		if err := os.Symlink(disk, filepath.Join(m.dir, "by-id", link)); err != nil {
			t.Fatal(err)
		}
	}
	m.write(m.dir+"/mounts", "")
	// A disk's file in disks contains its type and label.
	for name, body := range map[string]string{
		"mountpoint": `grep -q " $2\$" DIR/mounts`,
		"mount": `case $1 in
--bind) [ -d "$2" ] && [ -d "$3" ];;
*) shift; shift; set -- x "$1" "$2"; read -r type label <"DIR/disks/${2##*/}"; [ "$type" = ext4 ];;
esac && echo "$2 $3" >>DIR/mounts`,
		"blkid":     `for last; do :; done; [ -e "DIR/disks/${last##*/}" ] || exit 2; read -r type label <"DIR/disks/${last##*/}"; case $5 in TYPE) echo "$type";; *) echo "$label";; esac`,
		"mkfs.ext4": `for last; do :; done; echo "mkfs $last" >>DIR/calls; echo "ext4 skyserve" >"DIR/disks/${last##*/}"`,
		"lsblk":     `echo "$3 disk"; read -r type label <"DIR/disks/${3##*/}" || exit 0; if [ "$type" = linux_raid_member ] && [ -e DIR/assembled ]; then echo "DIR/dev/md127 raid0"; fi`,
		"mdadm": `echo "mdadm $1 $#" >>DIR/calls
case $1 in
--assemble) shift 2; read -r type label <"DIR/disks/${1##*/}" && [ "$type" = linux_raid_member ];;
--create) shift 5; for disk; do echo "linux_raid_member x" >"DIR/disks/${disk##*/}"; done;;
esac`,
	} {
		m.write(m.path+"/"+name, "#!/bin/sh\n"+strings.ReplaceAll(body, "DIR", m.dir)+"\n")
	}
	return m
}

func (m *diskMachine) disk(i int) string { return fmt.Sprintf("%s/dev/nvme%dn1", m.dir, i) }

func (m *diskMachine) write(path, text string) {
	m.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil { //nolint:gosec // programs
		m.t.Fatal(err)
	}
}

// boot runs the script, and returns the mounts and the calls that changed disks.
func (m *diskMachine) boot() (mounts, calls []string) {
	m.t.Helper()
	script, err := os.ReadFile("disks.sh")
	if err != nil {
		m.t.Fatal(err)
	}
	m.write(m.dir+"/calls", "")
	text := strings.NewReplacer("/dev/disk/by-id", m.dir+"/by-id", "/dev/md", m.dir+"/dev/md", "/mnt/", m.dir+"/mnt/", "/opt/dlami", m.dir+"/dlami", "/var/lib", m.dir+"/lib").Replace(string(script))
	if err := os.MkdirAll(m.dir+"/lib", 0o700); err != nil {
		m.t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", text)
	cmd.Env = append(os.Environ(), "PATH="+m.path+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("%s (%v)", out, err)
	}
	lines := func(file string) []string {
		text, err := os.ReadFile(filepath.Join(m.dir, file))
		if err != nil {
			m.t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(strings.ReplaceAll(string(text), m.dir, "")), "\n")
	}
	return lines("mounts"), lines("calls")
}

// binds are the mounts of the directories of Docker and the agent on a disk.
func binds(disk string) []string {
	var all []string
	for _, to := range []string{"skyserve/cache", "skyserve/weights", "docker", "containerd"} {
		all = append(all, disk+"/skyserve/"+filepath.Base(to)+" /lib/"+to)
	}
	return all
}

const instanceStore = "nvme-Amazon_EC2_NVMe_Instance_Storage_AWS1"

// Images, weights and caches are stored on local disks, after every boot, with or without their content.
func TestLocalDisksAreMounted(t *testing.T) {
	for _, tt := range []struct {
		name     string
		links    []string
		existing string // the type and label of every disk
		mounted  string // what is mounted before
		device   string // empty = none
		calls    []string
		root     string
	}{
		{"no local disk", nil, "", "", "", nil, ""},
		{"AWS's image has mounted them", []string{instanceStore}, "LVM2_member x", "/dlami/nvme", "", nil, "/dlami/nvme"},
		{"one at AWS", []string{instanceStore, instanceStore + "-part1"}, "", "", "/dev/nvme0n1", []string{"mkfs /dev/nvme0n1"}, "/mnt/skyserve"},
		{"one after a reboot", []string{instanceStore}, "ext4 skyserve", "", "/dev/nvme0n1", nil, "/mnt/skyserve"},
		{"one at Google", []string{"google-local-nvme-ssd-0"}, "", "", "/dev/nvme0n1", []string{"mkfs /dev/nvme0n1"}, "/mnt/skyserve"},
		{"two at Google", []string{"google-local-nvme-ssd-0", "google-local-nvme-ssd-1"}, "", "", "/dev/md/skyserve", []string{"mdadm --assemble 4", "mdadm --create 7", "mkfs /dev/md/skyserve"}, "/mnt/skyserve"},
		{"a network disk", []string{"google-boot", "nvme-Amazon_Elastic_Block_Store_vol1"}, "", "", "", nil, ""},
		{"a disk in use", []string{instanceStore}, "xfs data", "", "", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newDiskMachine(t, tt.links...)
			for i := range tt.links {
				if tt.existing != "" {
					m.write(fmt.Sprintf("%s/disks/nvme%dn1", m.dir, i), tt.existing+"\n")
				}
			}
			want := []string{""}
			if tt.mounted != "" {
				m.write(m.dir+"/mounts", "x "+m.dir+tt.mounted+"\n")
				want = []string{"x " + tt.mounted}
			}
			if tt.device != "" {
				want = []string{tt.device + " /mnt/skyserve"}
			}
			if tt.root != "" {
				want = append(want, binds(tt.root)...)
			}
			mounts, calls := m.boot()
			if !slices.Equal(mounts, want) {
				t.Errorf("mounted are\n%q, want\n%q", mounts, want)
			}
			if len(tt.calls) == 0 {
				tt.calls = []string{""}
			}
			if !slices.Equal(calls, tt.calls) {
				t.Errorf("called %q, want %q", calls, tt.calls)
			}
			if again, calls := m.boot(); !slices.Equal(again, want) || !slices.Equal(calls, []string{""}) {
				t.Errorf("again: mounted are %q after %q", again, calls)
			}
		})
	}
}

// An array that the kernel has assembled at a boot is mounted with its content. After a stop the disks are
// empty, and the array is created again.
func TestLocalDisksAfterRestart(t *testing.T) {
	m := newDiskMachine(t, "google-local-nvme-ssd-0", "google-local-nvme-ssd-1")
	m.boot()
	m.write(m.dir+"/mounts", "")
	m.write(m.dir+"/assembled", "")
	m.write(m.dir+"/disks/md127", "ext4 skyserve\n")
	mounts, calls := m.boot()
	if want := append([]string{"/dev/md127 /mnt/skyserve"}, binds("/mnt/skyserve")...); !slices.Equal(mounts, want) || calls[0] != "" {
		t.Errorf("after a reboot: mounted are %q after %q", mounts, calls)
	}
	for _, file := range []string{"/assembled", "/disks/md127", "/disks/skyserve", "/disks/nvme0n1", "/disks/nvme1n1"} {
		if err := os.Remove(m.dir + file); err != nil {
			t.Fatal(err)
		}
	}
	m.write(m.dir+"/mounts", "")
	if _, calls := m.boot(); !slices.Equal(calls, []string{"mdadm --assemble 4", "mdadm --create 7", "mkfs /dev/md/skyserve"}) {
		t.Errorf("after a stop: called %q", calls)
	}
}

// The disks are mounted before Docker starts, at every boot; machines without GPUs have no such unit.
func TestLocalDisksPrecedeDocker(t *testing.T) {
	for name, p := range machines() {
		text, err := templates.CloudInit(p)
		if err != nil {
			t.Fatal(err)
		}
		if !p.GPUs {
			if strings.Contains(text, "skyserve-disks") {
				t.Errorf("%s has the unit", name)
			}
			continue
		}
		var d document
		if err := yaml.Unmarshal([]byte(text), &d); err != nil {
			t.Fatal(err)
		}
		unit := d.file(t, "/etc/systemd/system/skyserve-disks.service")
		for _, line := range []string{"Before=docker.service containerd.service\n", "After=local-fs.target dlami-nvme.service\n", "RemainAfterExit=yes\n", "WantedBy=multi-user.target\n", "ExecStart=-/usr/local/lib/skyserve/disks\n"} {
			if !strings.Contains(unit, line) {
				t.Errorf("%s: the unit lacks %q", name, line)
			}
		}
		isScript(t, d.file(t, "/usr/local/lib/skyserve/disks"))
	}
}

// At the first boot, Docker is stopped while the disks are mounted; later it is left alone.
func TestFirstBootStopsDocker(t *testing.T) {
	whole, err := os.ReadFile("bootstrap-gpu.sh")
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(string(whole), "systemctl restart docker\nfi\n")
	for active, want := range map[bool]string{
		false: "is-active --quiet skyserve-disks\nstop docker.socket docker containerd\nenable skyserve-disks\nstart skyserve-disks\nstart docker\n",
		true:  "is-active --quiet skyserve-disks\n",
	} {
		dir := t.TempDir()
		fake := "#!/bin/sh\necho \"$@\" >>" + dir + "/calls\ncase $1 in stop) exit 5;; is-active) " + fmt.Sprint(active) + ";; esac\n"
		if err := os.WriteFile(dir+"/systemctl", []byte(fake), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-eu", "-c", script)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		calls, readErr := os.ReadFile(dir + "/calls")
		if err != nil || readErr != nil || string(calls) != want {
			t.Errorf("active %v: %q, %s (%v, %v)", active, calls, out, err, readErr)
		}
	}
}
