package templates

import (
	"embed"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

//go:embed cloud-init.tmpl bootstrap.sh bootstrap-docker.sh bootstrap-gpu.sh node.service
var machineFiles embed.FS

// CloudInitParams say what machine a cloud-init document is for.
type CloudInitParams struct {
	Cloud   string // aws or gcp: how the machine speaks to its cloud
	Service string
	Role    string // balancer or replica, as in the machine's certificate
	ID      string
	// Owner is the fingerprint of the service's certificate authority.
	Owner string
	// Listen is where operators reach the machine's agent: :8441.
	Listen string
	// ProgramURL is where the machine gets skyserve for Linux from, and ProgramSHA256
	// what it must be, in hexadecimal.
	ProgramURL    string
	ProgramSHA256 string
	// Containers has Docker installed where the image lacks it, GPUs also what
	// containers need to use them.
	Containers bool
	GPUs       bool
}

// cloudChannels are how an agent publishes its fingerprint in each cloud.
var cloudChannels = map[string]string{"aws": "console:/dev/console", "gcp": "guest-attributes", hereCloud: "console:console"}

// hereCloud is this computer, whose provider has the program and puts the console where it wants it.
const hereCloud = "local"

var (
	sumForm   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	plainForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]*$`)
)

func (p CloudInitParams) check() error {
	for _, f := range []struct{ name, value string }{{"service", p.Service}, {"role", p.Role}, {"id", p.ID}, {"owner", p.Owner}} {
		if !plainForm.MatchString(f.value) {
			return fmt.Errorf("making a cloud-init document: %s: want letters, digits and . _ @ -, got %q", f.name, f.value)
		}
	}
	u, err := url.Parse(p.ProgramURL)
	switch {
	case p.Cloud == hereCloud:
	case cloudChannels[p.Cloud] == "":
		return fmt.Errorf("making a cloud-init document: cloud: want aws or gcp, got %q", p.Cloud)
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || strings.ContainsAny(p.ProgramURL, "'\"\\ \n"):
		return fmt.Errorf("making a cloud-init document: program: want a URL that a shell can hold, got %q", p.ProgramURL)
	case !sumForm.MatchString(p.ProgramSHA256):
		return fmt.Errorf("making a cloud-init document: program: want a SHA-256 in hexadecimal, got %q", p.ProgramSHA256)
	case p.GPUs && !p.Containers:
		return fmt.Errorf("making a cloud-init document for %s: GPUs are for containers, and there are none", p.ID)
	}
	return nil
}

// CloudInit is the user data of a machine: it gets skyserve, and runs its agent with
// what the machine is born with. Everybody who may describe the machine can read it;
// it holds no secret.
func CloudInit(p CloudInitParams) (string, error) {
	if err := p.check(); err != nil {
		return "", err
	}
	config, err := json.MarshalIndent(struct {
		Service string `json:"service"`
		Role    string `json:"role"`
		ID      string `json:"id"`
		Owner   string `json:"owner"`
		Listen  string `json:"listen"`
		Dir     string `json:"dir"`
		Publish string `json:"publish"`
		Notices string `json:"notices"`
	}{p.Service, p.Role, p.ID, p.Owner, p.Listen, "/var/lib/skyserve", cloudChannels[p.Cloud], p.Cloud}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("making a cloud-init document: %w", err)
	}
	script, err := p.bootstrap()
	if err != nil {
		return "", err
	}
	unit, err := machineFile("node.service")
	if err != nil {
		return "", err
	}
	document, err := machineFile("cloud-init.tmpl")
	if err != nil {
		return "", err
	}
	return strings.NewReplacer(
		"@ID@", p.ID, "@SERVICE@", p.Service, "@CONFIG@\n", indented(string(config)), "@BOOTSTRAP@\n", indented(script), "@UNIT@\n", indented(unit),
	).Replace(document), nil
}

// bootstrap is the script that gets what this machine needs.
func (p CloudInitParams) bootstrap() (string, error) {
	names := []string{"bootstrap.sh"}
	if p.Containers {
		names = append(names, "bootstrap-docker.sh")
	}
	if p.GPUs {
		names = append(names, "bootstrap-gpu.sh")
	}
	script := ""
	for _, name := range names {
		part, err := machineFile(name)
		if err != nil {
			return "", err
		}
		script += part
	}
	return strings.NewReplacer("@URL@", p.ProgramURL, "@SHA256@", p.ProgramSHA256).Replace(script), nil
}

func machineFile(name string) (string, error) {
	text, err := machineFiles.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("making a cloud-init document: %w", err)
	}
	return string(text), nil
}

// indented puts a text below a key of the document, with a line's end.
func indented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		if line != "\n" {
			b.WriteString("      ")
		}
		b.WriteString(line)
	}
	return b.String()
}
