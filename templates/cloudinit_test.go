package templates_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"skyserve/internal/agent"
	"skyserve/templates"
)

var update = flag.Bool("update", false, "write the golden files anew")

// machines are the kinds of machines of a service in clouds.
func machines() map[string]templates.CloudInitParams {
	base := templates.CloudInitParams{
		Service: "chat", Owner: strings.Repeat("a2", 26), Listen: ":8441", ProgramURL: "https://example.com/skyserve-linux-amd64", ProgramSHA256: strings.Repeat("0f", 32),
	}
	all := map[string]templates.CloudInitParams{}
	for _, cloud := range []string{"aws", "gcp"} {
		balancer, replica := base, base
		balancer.Cloud, balancer.Role, balancer.ID = cloud, "balancer", "lb-us-0"
		replica.Cloud, replica.Role, replica.ID, replica.Containers, replica.GPUs = cloud, "replica", "us-0", true, true
		all[cloud+"-balancer"], all[cloud+"-replica"] = balancer, replica
	}
	bucket := all["aws-replica"]
	bucket.ProgramURL, bucket.ProgramPrivate, bucket.ProgramRegion = "https://skyserve-program-0f.s3.us-east-1.amazonaws.com/skyserve-0f", true, "us-east-1"
	all["aws-bucket"] = bucket
	bucket = all["gcp-balancer"]
	bucket.ProgramURL, bucket.ProgramPrivate = "https://storage.googleapis.com/storage/v1/b/skyserve-program-0f/o/skyserve-0f?alt=media", true
	all["gcp-bucket"] = bucket
	return all
}

// document is the part of the user data that a machine uses.
type document struct {
	WriteFiles []struct {
		Path        string `yaml:"path"`
		Permissions string `yaml:"permissions"`
		Content     string `yaml:"content"`
	} `yaml:"write_files"`
	RunCmd [][]string `yaml:"runcmd"`
}

func (d document) file(t *testing.T, path string) string {
	t.Helper()
	for _, f := range d.WriteFiles {
		if f.Path == path {
			return f.Content
		}
	}
	t.Fatalf("no %s", path)
	return ""
}

func TestCloudInit(t *testing.T) {
	for name, p := range machines() {
		t.Run(name, func(t *testing.T) {
			text, err := templates.CloudInit(p)
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(golden, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || string(want) != text {
				t.Errorf("%s differs (%v); update it with -update:\n%s", golden, err, text)
			}
			if len(text) > 16<<10 {
				t.Errorf("%d bytes, but AWS allows 16 KiB of user data", len(text))
			}
			if !strings.HasPrefix(text, "#cloud-config\n") || strings.Contains(text, "@U") || strings.Contains(text, "@S") {
				t.Error("it is not a cloud-init document, or has unreplaced placeholders")
			}
			var d document
			if err := yaml.UnmarshalWithOptions([]byte(text), &d, yaml.Strict()); err != nil {
				t.Fatal(err)
			}
			isBornWith(t, d, p)
			isScript(t, d.file(t, "/usr/local/lib/skyserve/bootstrap"))
			isUnit(t, d.file(t, "/etc/systemd/system/skyserve-node.service"))
		})
	}
}

// isBornWith checks that the agent accepts its file and has the expected identity.
func isBornWith(t *testing.T, d document, p templates.CloudInitParams) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.json")
	if err := os.WriteFile(path, []byte(d.file(t, "/etc/skyserve/node.json")), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := agent.ReadConfig(path)
	if err != nil || c.Service != p.Service || string(c.Role) != p.Role || c.ID != p.ID || c.Owner != p.Owner || c.PollCloud != p.Cloud {
		t.Errorf("the agent is %+v (%v)", c, err)
	}
}

func isScript(t *testing.T, text string) {
	t.Helper()
	cmd := exec.Command("sh", "-n")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the script: %s (%v)", out, err)
	}
}

// directives are those of systemd.unit(5), systemd.service(5) and systemd.exec(5) that a unit
// may have: systemd ignores unknown ones, including misspelt ones.
var directives = map[string]string{
	"Description": "Unit", "After": "Unit", "Wants": "Unit", "StartLimitIntervalSec": "Unit",
	"ExecStartPre": "Service", "ExecStart": "Service", "Restart": "Service", "RestartSec": "Service", "TimeoutStartSec": "Service", "LimitNOFILE": "Service",
	"WantedBy": "Install",
}

func isUnit(t *testing.T, text string) {
	t.Helper()
	section, starts := "", 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		name, value, found := strings.Cut(line, "=")
		switch {
		case line == "":
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		case !found || value == "" || directives[name] != section:
			t.Errorf("the unit: %q in section %q", line, section)
		case strings.HasPrefix(name, "Exec"):
			starts++
			if !strings.HasPrefix(value, "/") || strings.ContainsAny(value, `%$"'\;`) {
				t.Errorf("the unit runs %q, which systemd parses differently", value)
			}
		}
	}
	if starts != 2 {
		t.Errorf("the unit runs %d programs, want the script and the agent", starts)
	}
}

// The script installs the expected binary, again after an incomplete download, and no
// other.
func TestBootstrapVerifiesProgram(t *testing.T) {
	p := machines()["aws-balancer"]
	dir := t.TempDir()
	program, served := filepath.Join(dir, "skyserve"), filepath.Join(dir, "served")
	p.ProgramURL, p.ProgramSHA256 = "http://127.0.0.1:1/skyserve", "01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b" // of the end of a line
	text, err := templates.CloudInit(p)
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if err := yaml.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	// A fake curl copies the served file.
	curl := "#!/bin/sh\nwhile [ \"$1\" != --output ]; do shift; done\ncp " + served + " \"$2\"\n"
	if err := os.WriteFile(filepath.Join(dir, "curl"), []byte(curl), 0o700); err != nil {
		t.Fatal(err)
	}
	script := strings.ReplaceAll(d.file(t, "/usr/local/lib/skyserve/bootstrap"), "/usr/local/bin/skyserve", program)
	run := func() (string, error) {
		cmd := exec.Command("sh", "-c", script)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, step := range []struct {
		name, serves, has string
		fails             bool
	}{{"another program", "evil", "", true}, {"the program", "\n", "\n", false}, {"it has it already", "evil", "\n", false}} {
		if err := os.WriteFile(served, []byte(step.serves), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := run()
		if (err != nil) != step.fails {
			t.Errorf("%s: %s (%v)", step.name, out, err)
		}
		if have, err := os.ReadFile(program); string(have) != step.has || err != nil && step.has != "" {
			t.Errorf("%s: the machine has %q (%v)", step.name, have, err)
		}
	}
}

// Docker never runs without the rule that blocks containers from the metadata server, not
// even at a boot, when it restarts containers before the agent starts.
func TestContainersCannotReachMetadata(t *testing.T) {
	const rule = "-t raw -%s PREROUTING -d 169.254.169.254 -p tcp --dport 80 -j DROP"
	dir := t.TempDir()
	text, err := os.ReadFile("bootstrap-docker.sh")
	if err != nil {
		t.Fatal(err)
	}
	script := "set -eu\n" + strings.ReplaceAll(string(text), "/etc/systemd", dir+"/etc/systemd")
	// The fake programs record their arguments; iptables keeps its rules.
	for name, body := range map[string]string{
		"docker":    "",
		"systemctl": `[ "$1" != is-active ] || exit 3; [ "$1" != start ] || [ -e ` + dir + `/rule ]`,
		"iptables":  `case "$*" in *-C*) [ -e ` + dir + `/rule ];; *) touch ` + dir + `/rule;; esac`,
	} {
		body = "#!/bin/sh\necho " + name + ` "$@" >>` + dir + "/calls\n" + body + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	run := func(script string) string {
		cmd := exec.Command("sh", "-c", script)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s (%v)", out, err)
		}
		calls, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, "calls")); err != nil {
			t.Fatal(err)
		}
		return string(calls)
	}
	checkRule, addRule := "iptables -w "+fmt.Sprintf(rule, "C")+"\n", "iptables -w "+fmt.Sprintf(rule, "I")+"\n"
	if calls := run(script); calls != "systemctl daemon-reload\n"+checkRule+addRule+"systemctl is-active --quiet docker\nsystemctl start docker\n" {
		t.Errorf("at the first boot:\n%s", calls)
	}
	if calls := run(script); calls != "systemctl daemon-reload\n"+checkRule+"systemctl is-active --quiet docker\nsystemctl start docker\n" {
		t.Errorf("again:\n%s", calls)
	}
	unit, err := os.ReadFile(dir + "/etc/systemd/system/docker.service.d/skyserve.conf")
	before, found := strings.CutPrefix(string(unit), "[Service]\nExecStartPre=/bin/sh -c \"")
	if before = strings.TrimSuffix(before, "\"\n"); err != nil || !found || strings.ContainsAny(before, "\"\\%$\n") {
		t.Fatalf("Docker starts with %q (%v)", unit, err)
	}
	if err := os.Remove(filepath.Join(dir, "rule")); err != nil {
		t.Fatal(err)
	}
	if calls := run(before); calls != checkRule+addRule {
		t.Errorf("before Docker starts, at a boot:\n%s", calls)
	}
}

// Packages from a repository are signed by the pinned key: a fetched key is accepted only
// if it is that one and the only one in its file.
func TestRepositoryKeysArePinned(t *testing.T) {
	const meant, other = "C95B321B61E88C1809C4F759DDCAE044F796ECB0", "0123456789ABCDEF0123456789ABCDEF01234567"
	whole, err := os.ReadFile("bootstrap-gpu.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		served []string // primary keys
		taken  bool
	}{{"the key", []string{meant}, true}, {"another", []string{other}, false}, {"another beside it", []string{meant, other}, false}, {"another before it", []string{other, meant}, false}, {"none", nil, false}} {
		dir := t.TempDir()
		for _, folder := range []string{"keyrings", "sources.list.d"} {
			if err := os.MkdirAll(filepath.Join(dir, folder), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		served := ""
		for _, fingerprint := range tt.served {
			served += "pub:-:4096:1:" + fingerprint[24:] + ":1::\nfpr:::::::::" + fingerprint + ":\nuid:-::::1::X::NVIDIA:\nsub:-:4096:1:1:1::\nfpr:::::::::" + strings.Repeat("F", 40) + ":\n"
		}
		if err := os.WriteFile(filepath.Join(dir, "served"), []byte(served), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, body := range map[string]string{
			"dpkg-query": "", "systemctl": "", "apt-get": "echo apt-get >>" + dir + "/installed", "docker": "echo nvidia",
			"curl": `while [ "$1" != --output ]; do shift; done; cp ` + dir + `/served "$2"`,
			// it prints the content of a file, or copies it
			"gpg": `for last; do :; done; case "$*" in *--show-keys*) cat "$last";; *) while [ "$1" != --output ]; do shift; done; cp "$last" "$2";; esac`,
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		script := "set -eu\ninstall() { apt-get \"$@\"; }\n" + strings.NewReplacer("/usr/share/keyrings", dir+"/keyrings", "/etc/apt/sources.list.d", dir+"/sources.list.d", "/opt/dlami", dir).Replace(string(whole))
		cmd := exec.Command("sh", "-c", script)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if (err == nil) != tt.taken || !tt.taken && !strings.Contains(string(out), "skyserve: ") {
			t.Errorf("%s: %s (%v)", tt.name, out, err)
		}
		for _, made := range []string{"keyrings/nvidia-container-toolkit-keyring.gpg", "sources.list.d/nvidia-container-toolkit.list", "installed"} {
			if _, err := os.Stat(filepath.Join(dir, made)); (err == nil) != tt.taken {
				t.Errorf("%s: %s is there: %v", tt.name, made, err == nil)
			}
		}
	}
}

func TestCloudInitRejectsInvalidParams(t *testing.T) {
	good := machines()["aws-replica"]
	for name, change := range map[string]func(*templates.CloudInitParams){
		"an unknown cloud":           func(p *templates.CloudInitParams) { p.Cloud = "azure" },
		"a name that breaks YAML":    func(p *templates.CloudInitParams) { p.ID = "x\nruncmd: []" },
		"a URL that leaves a string": func(p *templates.CloudInitParams) { p.ProgramURL = "https://x/'; reboot; '" },
		"no program":                 func(p *templates.CloudInitParams) { p.ProgramURL = "" },
		"a sum that is none":         func(p *templates.CloudInitParams) { p.ProgramSHA256 = "abc" },
		"GPUs without containers":    func(p *templates.CloudInitParams) { p.Containers = false },
	} {
		p := good
		change(&p)
		if _, err := templates.CloudInit(p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
