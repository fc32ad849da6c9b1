// Package packaging_test checks what releases consist of besides the binary: the install script, the systemd unit
// with its configuration, the image and the configuration of GoReleaser.
package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"skyserve/internal/testkit"
)

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// systemd accepts the unit, and rates it as well restricted: 0 is closed, 10 is open.
func TestUnitOfTheBalancer(t *testing.T) {
	for _, problem := range testkit.UnitProblems(t, map[string]string{"skyserve-lb.service": read(t, "skyserve-lb.service")}) {
		t.Error(problem)
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", "skyserve-lb.service").CombinedOutput()
	if err != nil {
		t.Errorf("exposure is above 2.0: %v\n%s", err, out)
	}
}

// The unit, the package and the image name the same paths and user.
func TestPackagedPathsAgree(t *testing.T) {
	unit, release := read(t, "skyserve-lb.service"), read(t, "../../.goreleaser.yaml")
	for _, c := range []struct{ unit, release string }{
		{"ExecStart=/usr/bin/skyserve lb --config /etc/skyserve/lb.yaml", "dst: /etc/skyserve/lb.yaml, type: config|noreplace, file_info: {mode: 0600}"},
		{"User=skyserve", "dst: /usr/lib/sysusers.d/skyserve.conf"},
		{"StateDirectory=skyserve", "dst: /usr/lib/systemd/system/skyserve-lb.service"},
		{"SKYSERVE_HOME=/var/lib/skyserve", "bindir: /usr/bin"},
	} {
		if !strings.Contains(unit, c.unit) || !strings.Contains(release, c.release) {
			t.Errorf("the unit lacks %q or .goreleaser.yaml lacks %q", c.unit, c.release)
		}
	}
	if !strings.HasPrefix(read(t, "sysusers.conf"), "u skyserve ") {
		t.Error("sysusers.conf does not create the user of the unit")
	}
}

// Every file of this module that a release contains exists; the others are outputs of `make release-files`.
func TestReleasedFilesExist(t *testing.T) {
	text := read(t, "../../.goreleaser.yaml")
	var config map[string]any
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	sources := regexp.MustCompile(`(?m)(?:src: |^      - )([A-Za-z][\w./*-]+)`).FindAllStringSubmatch(text, -1)
	checked := 0
	for _, s := range sources {
		if strings.HasPrefix(s[1], "bin/release/") || s[1] == "make" {
			continue
		}
		checked++
		if _, err := os.Stat(filepath.Join("../..", s[1])); err != nil {
			t.Error(err)
		}
	}
	if checked < 9 {
		t.Errorf("only %d files found: the check has lost its subject", checked)
	}
}

// The image runs as a user other than root, given by number, and its binary is where GoReleaser and `make image` put it.
func TestDockerfile(t *testing.T) {
	text, makefile := read(t, "../../Dockerfile"), read(t, "../../Makefile")
	for _, line := range []string{"\nFROM ${BASE}\n", "\nCOPY ${TARGETPLATFORM}/skyserve /usr/bin/skyserve\n", "\nUSER 65532:65532\n", "\nENTRYPOINT [\"/usr/bin/skyserve\"]\n"} {
		if !strings.Contains(text, line) {
			t.Errorf("Dockerfile lacks %q", line)
		}
	}
	if !strings.Contains(makefile, "-o bin/image/linux/$(ARCH)/skyserve") || !strings.Contains(makefile, "-f Dockerfile -t $(IMAGE) bin/image") {
		t.Error("make image puts the binary elsewhere")
	}
}
