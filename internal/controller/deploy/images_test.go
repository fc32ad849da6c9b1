package deploy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/registry"
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

const (
	digestA = "sha256:" + "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
	digestB = "sha256:" + "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b"
)

// Status shows each model's image with its recorded digest, including defaults.
func TestStatusShowsImages(t *testing.T) {
	pinned := "vllm/vllm-openai:v1@" + digestA
	spec := &service.Spec{Models: []service.Model{
		{Name: "default", Engine: service.Engine{Kind: service.EngineVLLM}},
		{Name: "pinned", Engine: service.Engine{Kind: service.EngineVLLM, Image: pinned}},
		{Name: "mine", Engine: service.Engine{Kind: service.EngineOpenAI, Image: "mine:1"}},
		{Name: "simulated", Engine: service.Engine{Kind: service.EngineSim}},
	}, Regions: []service.RegionSpec{{Name: "aws/us-east-1", Replicas: service.Bounds{Max: 1}}}}
	want := []ImageStatus{{"default", imageVLLM + "@" + digestB, true}, {"pinned", pinned, true}, {"mine", "mine:1", false}}
	if got := ImagesOf(spec, Images{imageVLLM: imageVLLM + "@" + digestB}); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// imagesService is a service whose models run in containers on rented machines, except the last ones.
func imagesService(t *testing.T) *service.Spec {
	t.Helper()
	spec, err := service.Parse("service.yaml", []byte(`
name: chat
models:
  - {name: default, engine: {kind: vllm}}
  - {name: again, engine: {kind: vllm}}
  - {name: mine, engine: {kind: openai, image: "mine:1"}}
  - {name: pinned, engine: {kind: vllm, image: "other:1@`+digestA+`"}}
  - {name: simulated, engine: {kind: sim}}
  - {name: nowhere, engine: {kind: sglang}, regions: {aws/us-east-1: {min: 0, max: 0}}}
regions: [{name: aws/us-east-1}]
balancer: {insecure: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// The digest of each image is read once and kept until the image changes, or on request.
func TestResolveImages(t *testing.T) {
	spec, other := imagesService(t), "other:1@"+digestA
	all := Images{imageVLLM: imageVLLM + "@" + digestA, "mine:1": "mine:1@" + digestA, other: other}
	moved := Images{imageVLLM: imageVLLM + "@" + digestB, "mine:1": "mine:1@" + digestB, other: other}
	for _, tt := range []struct {
		name     string
		recorded Images
		which    ResolveImage
		digest   string
		read     []string
		want     Images
	}{
		{"first up", nil, ResolveChanged, digestA, []string{"mine:1", other, imageVLLM}, all},
		{"the tag has moved", all, ResolveChanged, digestB, nil, all},
		{"refreshed", all, ResolveAlways, digestB, []string{"mine:1", other, imageVLLM}, moved},
		{"another image", Images{imageVLLM: imageVLLM + "@" + digestB, "earlier:1": "earlier:1@" + digestA, other: other}, ResolveChanged, digestB, []string{"mine:1"}, moved},
		{"never, first", nil, ResolveNever, digestA, nil, Images{}},
		{"never, later", all, ResolveNever, digestB, nil, all},
	} {
		var mu sync.Mutex
		var read []string
		got, problems, err := ResolveImages(t.Context(), spec, tt.recorded, tt.which, func(_ context.Context, image string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			read = append(read, image)
			return tt.digest, nil
		})
		slices.Sort(read)
		if err != nil || len(problems) != 0 || !maps.Equal(got, tt.want) || !slices.Equal(read, tt.read) {
			t.Errorf("%s: got %v (%v, %v), read %v; want %v, read %v", tt.name, got, problems, err, read, tt.want, tt.read)
		}
	}
}

// An image that does not exist is an error, before anything is billed. A registry that does not answer is a warning.
func TestResolveImagesProblems(t *testing.T) {
	spec := imagesService(t)
	for _, tt := range []struct {
		name     string
		recorded Images
		err      error
		want     string // a part of the error or of the warning
		fatal    bool
	}{
		{"not found", nil, fmt.Errorf("hub: %w (HTTP 404)", registry.ErrNotFound), "models[0].engine.image: " + imageVLLM + ": hub: the registry does not have it (HTTP 404); correct the name, or push the image", true},
		{"invalid", nil, registry.ErrInvalid, "models[2].engine.image: mine:1: invalid name of an image", true},
		{"denied", nil, registry.ErrDenied, "machines pull the tag, and replicas may differ if it is moved; run 'docker login' on this computer", false},
		{"limited", nil, registry.ErrLimited, "; run 'skyserve up' again later, or 'docker login' for a higher limit", false},
		{"unreachable", nil, errors.New("no such host"), "models[2].engine.image: cannot read the digest of mine:1: no such host; machines pull the tag", false},
		{"known", Images{imageVLLM: imageVLLM + "@" + digestB, "mine:1": "mine:1@" + digestB}, errors.New("no such host"), "no such host; machines still pull mine:1@" + digestB, false},
	} {
		images, problems, err := ResolveImages(t.Context(), spec, tt.recorded, ResolveAlways, func(context.Context, string) (string, error) { return "", tt.err })
		var invalid *provision.SpecError
		if tt.fatal {
			if !errors.As(err, &invalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
			}
			continue
		}
		if err != nil || len(problems) != 2 || !maps.Equal(images, tt.recorded) {
			t.Errorf("%s: %v, %d problems (%v)", tt.name, images, len(problems), err)
		}
		if text := fmt.Sprint(problems); !strings.Contains(text, tt.want) {
			t.Errorf("%s: %s, want %q", tt.name, text, tt.want)
		}
	}
}

// Each default image has an exact version with its public source and date.
func TestDefaultImagesHaveSources(t *testing.T) {
	version := regexp.MustCompile(`^[a-z0-9-]+/[a-z0-9-]+:v\d+\.\d+\.\d+$`)
	kinds := map[service.EngineKind]bool{}
	for _, d := range defaultImages {
		kinds[d.kind] = true
		if _, err := time.Parse(time.DateOnly, d.date); err != nil || !version.MatchString(d.image) || !strings.HasPrefix(d.source, "https://") {
			t.Errorf("%+v (%v)", d, err)
		}
	}
	if !kinds[service.EngineVLLM] || !kinds[service.EngineSGLang] || len(kinds) != len(defaultImages) {
		t.Errorf("the kinds are %v", kinds)
	}
}
