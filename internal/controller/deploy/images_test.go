package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// docs/security.md names the default images.
func TestDefaultImagesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range defaultImages {
		if !strings.Contains(string(text), "`"+d.image+"`") {
			t.Errorf("docs/security.md does not name %s", d.image)
		}
	}
}

// Status shows each model's image, including defaults, and whether it is pinned.
func TestStatusShowsImages(t *testing.T) {
	pinned := "vllm/vllm-openai:v1@sha256:" + strings.Repeat("0a", 32)
	spec := &service.Spec{Models: []service.Model{
		{Name: "default", Engine: service.Engine{Kind: service.EngineVLLM}},
		{Name: "pinned", Engine: service.Engine{Kind: service.EngineVLLM, Image: pinned}},
		{Name: "mine", Engine: service.Engine{Kind: service.EngineOpenAI, Image: "mine:1"}},
		{Name: "simulated", Engine: service.Engine{Kind: service.EngineSim}},
	}}
	want := []ImageStatus{{"default", imageVLLM, false}, {"pinned", pinned, true}, {"mine", "mine:1", false}}
	if got := imagesOf(spec); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, m := range spec.Models {
		if u, _ := unitOf(&m, 1, provision.MachineEndpoints{Loopback: "127.0.0.1"}); u.Image != imageOf(&m.Engine) {
			t.Errorf("%s runs in %q, and status shows %q", m.Name, u.Image, imageOf(&m.Engine))
		}
	}
}

// Each default image has an exact version with its public source and date; a digest, if any, is valid.
func TestDefaultImagesHaveSources(t *testing.T) {
	version := regexp.MustCompile(`^[a-z0-9-]+/[a-z0-9-]+:v\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?$`)
	kinds := map[service.EngineKind]bool{}
	for _, d := range defaultImages {
		kinds[d.kind] = true
		if _, err := time.Parse(time.DateOnly, d.sought); err != nil || !version.MatchString(d.image) || !strings.HasPrefix(d.source, "https://") {
			t.Errorf("%+v (%v)", d, err)
		}
	}
	if !kinds[service.EngineVLLM] || !kinds[service.EngineSGLang] || len(kinds) != len(defaultImages) {
		t.Errorf("the kinds are %v", kinds)
	}
}

// The script prints an image with its digest, with whichever program is installed, and nothing that is none.
func TestImageDigestScript(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	fakes := map[string]string{
		"docker": `[ "$1 $2 $3" = "buildx imagetools inspect" ] && echo DIGEST`,
		"skopeo": `[ "$1" = inspect ] && for last; do :; done; [ "$last" = docker://vllm/vllm-openai:v1 ] && echo DIGEST`,
		"curl": `case "$*" in
*auth.docker.io*repository:vllm/vllm-openai:pull*) echo '{"token":"t0ken"}';;
*registry-1.docker.io/v2/vllm/vllm-openai/manifests/v1) printf 'HTTP/2 200\r\nDocker-Content-Digest: DIGEST\r\n\r\n';;
*) exit 22;;
esac`,
	}
	for _, tt := range []struct{ program, prints, image, want string }{
		{"docker", digest, "vllm/vllm-openai:v1", "vllm/vllm-openai:v1@" + digest},
		{"skopeo", digest, "vllm/vllm-openai:v1", "vllm/vllm-openai:v1@" + digest},
		{"curl", digest, "vllm/vllm-openai:v1", "vllm/vllm-openai:v1@" + digest},
		{"docker", "sha256:abc", "vllm/vllm-openai:v1", "must be sha256: and 64 hexadecimal digits, got sha256:abc"},
		{"curl", digest, "vllm/vllm-openai", "must be NAME:TAG, got vllm/vllm-openai"},
		{"curl", digest, "other/image:v1", "cannot read the digest of other/image:v1"},
		{"none", "", "vllm/vllm-openai:v1", "install docker with buildx, skopeo or curl"},
	} {
		dir := t.TempDir()
		for _, tool := range []string{"sh", "sed", "tr", "grep", "cat"} {
			path, err := exec.LookPath(tool)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, filepath.Join(dir, tool)); err != nil {
				t.Fatal(err)
			}
		}
		if body, ok := fakes[tt.program]; ok {
			body = "#!/bin/sh\n" + strings.ReplaceAll(body, "DIGEST", tt.prints) + "\n"
			if err := os.WriteFile(filepath.Join(dir, tt.program), []byte(body), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", "image-digest.sh", tt.image)
		cmd.Env = []string{"PATH=" + dir}
		out, err := cmd.CombinedOutput()
		if isImage := strings.Contains(tt.want, "@"); (err == nil) != isImage || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s with %s: %s (%v), want %s", tt.image, tt.program, out, err, tt.want)
		}
	}
}
