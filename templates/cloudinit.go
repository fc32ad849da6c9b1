package templates

import (
	"embed"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

//go:embed cloud-init.tmpl bootstrap.sh presign.sh authorize.sh bootstrap-docker.sh bootstrap-gpu.sh node.service disks.sh disks.service
var machineFiles embed.FS

// CloudInitParams describes the machine of a cloud-init document.
type CloudInitParams struct {
	Cloud   string // aws or gcp
	Service string
	Role    string // balancer or replica, as in the machine's certificate
	ID      string
	// Owner is the fingerprint of the service's certificate authority.
	Owner string
	// Listen is the address of the machine's agent, such as :8441.
	Listen string
	// ProgramURL is the URL from which the machine downloads skyserve for Linux, and
	// ProgramSHA256 its hash in hexadecimal.
	ProgramURL    string
	ProgramSHA256 string
	// ProgramPrivate states that ProgramURL is in a bucket, from which the machine downloads with its own
	// identity. ProgramRegion is the region of the bucket, at AWS only.
	ProgramPrivate bool
	ProgramRegion  string
	// Containers installs Docker if the image lacks it. GPUs also installs what containers
	// need to use GPUs.
	Containers bool
	GPUs       bool
}

// cloudChannels maps a cloud to the channel through which an agent publishes its fingerprint.
var cloudChannels = map[string]string{"aws": "console:/dev/console", "gcp": "guest-attributes", localCloud: "console:console"}

// signingFunctions maps a cloud to the function that prints a download with a machine's own credentials as a
// configuration of curl, and to the name of its file.
var signingFunctions = map[string]string{"aws": "presign", "gcp": "authorize"}

// localCloud is the cloud of local machines. Their provider supplies the program and the console.
const localCloud = "local"

var (
	sha256Pattern = regexp.MustCompile(`^[0-9a-f]{64}$`)
	plainPattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]*$`)
)

func (p CloudInitParams) check() error {
	for _, f := range []struct{ name, value string }{{"service", p.Service}, {"role", p.Role}, {"id", p.ID}, {"owner", p.Owner}} {
		if !plainPattern.MatchString(f.value) {
			return fmt.Errorf("creating a cloud-init document: %s: must consist of letters, digits and . _ @ -, got %q", f.name, f.value)
		}
	}
	u, err := url.Parse(p.ProgramURL)
	switch {
	case p.Cloud == localCloud:
	case cloudChannels[p.Cloud] == "":
		return fmt.Errorf("creating a cloud-init document: cloud: must be one of aws, gcp, got %q", p.Cloud)
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || strings.ContainsAny(p.ProgramURL, "'\"\\ \n"):
		return fmt.Errorf("creating a cloud-init document: program: must be an http or https URL without quotes, spaces or backslashes, got %q", p.ProgramURL)
	case !sha256Pattern.MatchString(p.ProgramSHA256):
		return fmt.Errorf("creating a cloud-init document: program: must have a SHA-256 in hexadecimal, got %q", p.ProgramSHA256)
	case (p.ProgramRegion != "") != (p.ProgramPrivate && p.Cloud == "aws") || p.ProgramRegion != "" && !plainPattern.MatchString(p.ProgramRegion):
		return fmt.Errorf("creating a cloud-init document: program region: must be the region of a bucket of AWS, got %q in %s", p.ProgramRegion, p.Cloud)
	case p.GPUs && !p.Containers:
		return fmt.Errorf("creating a cloud-init document for %s: GPUs require Containers", p.ID)
	}
	return nil
}

// CloudInit returns the user data of a machine, which downloads skyserve and runs its agent.
// Everybody with permission to describe the machine can read user data, so it contains no secrets.
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
		return "", fmt.Errorf("creating a cloud-init document: %w", err)
	}
	script, err := p.bootstrap()
	if err != nil {
		return "", err
	}
	unit, err := machineFile("node.service")
	if err != nil {
		return "", err
	}
	disks, err := p.diskFiles()
	if err != nil {
		return "", err
	}
	document, err := machineFile("cloud-init.tmpl")
	if err != nil {
		return "", err
	}
	return strings.NewReplacer(
		"@ID@", p.ID, "@SERVICE@", p.Service, "@CONFIG@\n", indent(string(config)), "@BOOTSTRAP@\n", indent(script), "@UNIT@\n", indent(unit), "@DISKS@\n", disks,
	).Replace(document), nil
}

// bootstrap returns the script that installs the machine's prerequisites.
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
	credentials, signed, source := "", "", "'"+p.ProgramURL+"'"
	if p.ProgramPrivate {
		function := signingFunctions[p.Cloud]
		var err error
		if credentials, err = machineFile(function + ".sh"); err != nil {
			return "", err
		}
		signed, source = function+" | ", "--config -"
	}
	script = strings.NewReplacer("@CREDENTIALS@", credentials, "@SIGNED@", signed, "@SOURCE@", source).Replace(script)
	return strings.NewReplacer("@URL@", p.ProgramURL, "@SHA256@", p.ProgramSHA256, "@REGION@", p.ProgramRegion).Replace(script), nil
}

// diskFiles returns the entries of the document that store the files of engines on the local disks of a
// machine with GPUs.
func (p CloudInitParams) diskFiles() (string, error) {
	if !p.GPUs {
		return "", nil
	}
	script, err := machineFile("disks.sh")
	if err != nil {
		return "", err
	}
	unit, err := machineFile("disks.service")
	if err != nil {
		return "", err
	}
	return "  - path: /usr/local/lib/skyserve/disks\n    permissions: \"0755\"\n    content: |\n" + indent(script) +
		"  - path: /etc/systemd/system/skyserve-disks.service\n    content: |\n" + indent(unit), nil
}

func machineFile(name string) (string, error) {
	text, err := machineFiles.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("creating a cloud-init document: %w", err)
	}
	return string(text), nil
}

// indent indents a text as the value of a key of the document, and ends it with a newline.
func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		if line != "\n" {
			b.WriteString("      ")
		}
		b.WriteString(line)
	}
	return b.String()
}
