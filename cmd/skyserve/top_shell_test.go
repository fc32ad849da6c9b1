package main

import (
	"path/filepath"
	"slices"
	"testing"

	"skyserve/provision"
	"skyserve/provision/local"
)

// The key s of top runs the usual command of each provider.
func TestShellCommands(t *testing.T) {
	t.Setenv("SHELL", "/bin/zsh")
	t.Setenv("SKYSERVE_HOME", t.TempDir())
	home, err := local.OpenHome()
	if err != nil {
		t.Fatal(err)
	}
	svc, err := home.Service("chat")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		machine provision.Object
		want    []string // nil = an error
	}{
		{provision.Object{ID: "us-0", Region: "local/us"}, []string{"/bin/zsh"}},
		{provision.Object{ID: "us-0", Region: "aws/us-east-1", Handle: "i-0abc"}, []string{"aws", "ssm", "start-session", "--region", "us-east-1", "--target", "i-0abc"}},
		{provision.Object{ID: "eu-0", Region: "gcp/europe-west4", Handle: "europe-west4-a/chat-eu-0/17"}, []string{"gcloud", "compute", "ssh", "chat-eu-0", "--zone", "europe-west4-a", "--project", "my-project"}},
		{provision.Object{ID: "us-1", Region: "aws/us-east-1"}, nil},
	} {
		cmd, err := shellOf(svc, c.machine, "my-project")
		if c.want == nil {
			if err == nil {
				t.Errorf("%s: got %v", c.machine.ID, cmd.Args)
			}
			continue
		}
		if err != nil || !slices.Equal(cmd.Args, c.want) {
			t.Errorf("%s: got %v, %v, want %v", c.machine.Region, cmd, err, c.want)
		}
	}
	cmd, err := shellOf(svc, provision.Object{ID: "us-0", Region: "local/us"}, "")
	if err != nil || filepath.Base(cmd.Dir) != "us-0" {
		t.Errorf("the shell of a local machine runs in %q, %v", cmd.Dir, err)
	}
	for address, want := range map[string]string{"http://gpu-1:8000": "gpu-1", "https://10.0.0.7:8000/v1": "10.0.0.7", "http://-oProxyCommand=x:1": "", "nonsense": ""} {
		cmd, err := sshTo(address)
		if want == "" && err == nil || want != "" && (err != nil || !slices.Equal(cmd.Args, []string{"ssh", want})) {
			t.Errorf("%s: got %v, %v", address, cmd, err)
		}
	}
}
