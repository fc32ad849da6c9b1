package machines

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// pathBootstrap is the path of the bootstrap script in cloud-init documents, and pathProgram that of the binary
// that it installs.
const (
	pathBootstrap = "/usr/local/lib/skyserve/bootstrap"
	pathProgram   = "/usr/local/bin/skyserve"
)

// diskBootstrap and diskProgram are the same paths on a machine's disk, a directory.
const (
	diskBootstrap = "bootstrap"
	diskProgram   = "bin/skyserve"
)

// startScript runs a bootstrap script, repeats it after a failure as systemd does, up to a minute, and becomes the agent. SIGTERM
// ends it.
const startScript = `trap 'exit 0' TERM
tries=60
until "$0"; do tries=$((tries - 1)); test $tries -gt 0 || exit 1; sleep 1; done
trap - TERM
exec "$1" node --config "$2"`

// writeBootstrap writes a machine's bootstrap script, which installs the binary on the machine's disk.
func writeBootstrap(dir, script string) error {
	if script == "" {
		return fmt.Errorf("reading the cloud-init document: no file %s", pathBootstrap)
	}
	program := filepath.Join(dir, diskProgram)
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return err
	}
	script = strings.ReplaceAll(script, pathProgram, program)
	return os.WriteFile(filepath.Join(dir, diskBootstrap), []byte(script), 0o700) //nolint:gosec // it is run
}
