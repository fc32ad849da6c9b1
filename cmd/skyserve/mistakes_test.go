package main

import (
	"bytes"
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// rightFile is a correct service file, from which each mistake of a file differs by one edit.
const rightFile = `name: chat
models:
  - name: llama
    aliases: [small]
    engine: {kind: sim}
    gpus: [{type: L4, tps: 1000}]
    slo: {IW-F: {ttft: 1s}}
regions:
  - name: local/us
    replicas: {min: 1, max: 4}
  - name: local/eu
    replicas: {min: 1, max: 4}
balancer:
  policy: cost
local:
  rtt: {us-eu: 100ms}
`

// rightCloudFile is a correct service file for a cloud.
const rightCloudFile = `name: far
models: [{name: llama, engine: {kind: vllm}, gpus: [{type: L4, tps: 1000}]}]
regions: [{name: aws/us-east-1, replicas: {min: 1, max: 2}}]
balancer: {insecure: true, auth: {keys_from: env:KEYS}}
`

// mistake is one mistake of an operator.
type mistake struct {
	name string
	// edit is two texts: the file is rightFile (or base) in which the first is replaced by the second. Without it
	// the file is base.
	edit [2]string
	base string
	// state are files of the state directory, by path.
	state map[string]string
	// env are environment variables.
	env map[string]string
	// args are the arguments; FILE stands for the path of the file. Default: validate FILE.
	args string
	// code is the exit code, and says are texts that the error contains: the place, the found value, the rule
	// and the next step. never are texts that it must not contain.
	code  int
	says  []string
	never []string
}

// unexplained matches words of libraries and of Go that explain nothing to an operator.
var unexplained = regexp.MustCompile(`%!|panic|goroutine|invalid character|cannot unmarshal|unexpected end of JSON|json:|strconv\.|<nil>|nil pointer|IMDS|errno`)

// Every mistake is answered with its place, the found value, the rule and the next step, and exits with the
// documented code.
func TestMistakesAreExplained(t *testing.T) {
	if len(mistakes) < 60 {
		t.Errorf("%d mistakes", len(mistakes))
	}
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			home, dir := t.TempDir(), t.TempDir()
			t.Setenv("SKYSERVE_HOME", home)
			for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS", "HTTPS_PROXY", "HTTP_PROXY"} {
				t.Setenv(name, "")
			}
			t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
			t.Setenv("AWS_CONFIG_FILE", filepath.Join(dir, "none"))
			t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(dir, "none"))
			t.Setenv("HOME", dir)
			t.Setenv("KEYS", "key-of-a-client")
			for name, value := range m.env {
				t.Setenv(name, value)
			}
			for name, text := range m.state {
				write(t, filepath.Join(home, filepath.FromSlash(name)), text)
			}
			base := m.base
			if base == "" {
				base = rightFile
			}
			if m.edit[0] != "" && !strings.Contains(base, m.edit[0]) {
				t.Fatalf("the file does not contain %q", m.edit[0])
			}
			file := filepath.Join(dir, "service.yaml")
			write(t, file, strings.Replace(base, m.edit[0], m.edit[1], 1))
			args := m.args
			if args == "" {
				args = "validate FILE"
			}
			var out, errOut bytes.Buffer
			words := strings.Fields(strings.ReplaceAll(args, "FILE", file))
			code := execute(context.Background(), words, &out, &errOut)
			text := errOut.String() + out.String()
			if code != m.code {
				t.Errorf("exit code %d, want %d", code, m.code)
			}
			for _, want := range m.says {
				if !strings.Contains(text, want) {
					t.Errorf("no %q", want)
				}
			}
			for _, bad := range m.never {
				if strings.Contains(text, bad) {
					t.Errorf("contains %q", bad)
				}
			}
			if found := unexplained.FindString(text); found != "" {
				t.Errorf("contains %q", found)
			}
			if t.Failed() {
				t.Logf("skyserve %s\n%s", args, text)
			}
		})
	}
}
