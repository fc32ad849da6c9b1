package deploy

import (
	"os"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
)

// docs/security.md names the default images.
func TestDefaultImagesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{imageVLLM, imageSGLang} {
		if !strings.Contains(string(text), "`"+image+"`") {
			t.Errorf("docs/security.md does not name %s", image)
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
