//go:build compare

package judge

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"skyserve/internal/testkit"
	"skyserve/templates"
)

// bootFiles are the user data of a machine: a cloud-init document and the files that it writes.
type bootFiles struct {
	name  string
	text  string
	files map[string]string // content by path
}

// renderAll renders the user data of every kind of machine that the templates distinguish.
func renderAll(t *testing.T) []bootFiles {
	t.Helper()
	var all []bootFiles
	for _, cloud := range []string{"aws", "gcp", "local"} {
		for _, region := range []string{"", "us-east-1"} {
			for software := range 3 { // none, containers, containers with GPUs
				p := templates.CloudInitParams{
					Cloud: cloud, Service: "chat", Role: "replica", ID: "us-0", Owner: strings.Repeat("a2", 26), Listen: ":8441",
					ProgramURL: "https://example.com/skyserve", ProgramSHA256: strings.Repeat("0f", 32), ProgramRegion: region,
					Containers: software > 0, GPUs: software > 1,
				}
				if text, err := templates.CloudInit(p); err == nil {
					all = append(all, parseBoot(t, fmt.Sprintf("%s region=%q containers=%v gpus=%v", cloud, region, p.Containers, p.GPUs), text))
				} else if region == "" {
					t.Fatal(err)
				}
			}
		}
	}
	return all
}

func parseBoot(t *testing.T, name, text string) bootFiles {
	t.Helper()
	var document struct {
		WriteFiles []struct{ Path, Content string } `yaml:"write_files"`
	}
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	b := bootFiles{name, text, map[string]string{}}
	for _, f := range document.WriteFiles {
		b.files[f.Path] = f.Content
	}
	return b
}

// debianMu serializes downloads of packages.
var debianMu sync.Mutex

// debianPackage returns a directory with the files of a Debian package, without installing it.
func debianPackage(t *testing.T, name, what string) string {
	t.Helper()
	debianMu.Lock()
	defer debianMu.Unlock()
	dir := t.TempDir()
	for _, command := range [][]string{{"apt-get", "download", name}, {"sh", "-c", "dpkg-deb -x *.deb ."}} {
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Skipf("NOT JUDGED: %s: cannot obtain the Debian package %s: %v\n%s", what, name, err, out)
		}
	}
	return dir
}

// program returns the path of a program that is installed, or in a Debian package of that name.
func program(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return filepath.Join(debianPackage(t, name, name), "usr/bin", name)
}

// schemaPath is the path of cloud-init's schema in its Debian package.
const schemaPath = "usr/lib/python3/dist-packages/cloudinit/config/schemas/schema-cloud-config-v1.json"

// cloudInit is cloud-init's schema, and the names of all its settings: the schema ignores unknown ones, and so does
// cloud-init.
type cloudInit struct {
	schema *jsonschema.Schema
	known  map[string]bool
}

func loadCloudInit(t *testing.T) cloudInit {
	t.Helper()
	path := filepath.Join(debianPackage(t, "cloud-init", "cloud-init documents"), schemaPath)
	schema, err := jsonschema.NewCompiler().Compile(path)
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Defs map[string]struct {
			Properties map[string]any
			OneOf      []struct{ Properties map[string]any }
		} `json:"$defs"`
	}
	readJSON(t, &document, path)
	c := cloudInit{schema, map[string]bool{}}
	for _, module := range document.Defs {
		for name := range module.Properties {
			c.known[name] = true
		}
	}
	return c
}

// problems returns what is wrong with a document.
func (c cloudInit) problems(text string) []string {
	body, isConfig := strings.CutPrefix(text, "#cloud-config\n")
	var document map[string]any
	if err := yaml.Unmarshal([]byte(body), &document); err != nil {
		return []string{err.Error()}
	}
	var found []string
	if !isConfig {
		found = append(found, "its first line must be #cloud-config")
	}
	for name := range document {
		if !c.known[name] {
			found = append(found, "unknown setting "+name)
		}
	}
	if err := c.schema.Validate(document); err != nil {
		found = append(found, err.Error())
	}
	return found
}

// Every document follows cloud-init's schema, and the schema rejects wrong ones.
func TestUserDataFollowsCloudInitSchema(t *testing.T) {
	c := loadCloudInit(t)
	all := renderAll(t)
	for _, b := range all {
		for _, problem := range c.problems(b.text) {
			t.Errorf("%s: %s", b.name, problem)
		}
	}
	for from, to := range map[string]string{
		"#cloud-config\n": "", "write_files:": "write_file:", `permissions: "0755"`: "permissions: 493", "runcmd:\n": "runcmd: 3\nx:\n", "    content: |": "    contents: |",
	} {
		if len(c.problems(strings.Replace(all[0].text, from, to, 1))) == 0 {
			t.Errorf("%q instead of %q is not found", to, from)
		}
	}
	t.Logf("JUDGED: %d cloud-init documents", len(all))
}

// shellcheck returns what shellcheck reports about a script.
func shellcheck(t *testing.T, checker, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), checker, "--format=gcc", "--norc", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Fatalf("%s: %v", checker, err)
	}
	return string(out)
}

// Shellcheck has no finding in a script that a machine runs, nor in those of releases.
func TestBootScriptsPassShellcheck(t *testing.T) {
	checker := program(t, "shellcheck")
	scripts := map[string]string{} // name by content
	for _, b := range renderAll(t) {
		for path, content := range b.files {
			if strings.HasPrefix(content, "#!") {
				scripts[content] = b.name + " " + path
			}
		}
	}
	for _, name := range []string{"install.sh", "internal/packaging/postinstall.sh"} { // users run these
		text, err := os.ReadFile(filepath.Join("../../..", name))
		if err != nil {
			t.Fatal(err)
		}
		scripts[string(text)] = name
	}
	for content, name := range scripts {
		if out := shellcheck(t, checker, content); out != "" {
			t.Errorf("%s:\n%s", name, out)
		}
	}
	if shellcheck(t, checker, "#!/bin/sh\ncd $1\n") == "" {
		t.Error("a word without quotes is not found")
	}
	t.Logf("JUDGED: %d scripts", len(scripts))
}

// systemd accepts the units that the documents write. The units of the agent are judged in its package.
func TestBootUnitsPassSystemdAnalyze(t *testing.T) {
	units := map[string]string{}
	for _, b := range renderAll(t) {
		for path, content := range b.files {
			if strings.HasSuffix(path, ".service") {
				units[filepath.Base(path)] = content // does not depend on the machine
			}
		}
	}
	for _, problem := range testkit.UnitProblems(t, units) {
		t.Error(problem)
	}
	t.Logf("JUDGED: %d units", len(units))
}
