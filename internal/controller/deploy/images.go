package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"skyserve/internal/registry"
	"skyserve/internal/service"
	"skyserve/provision"
)

// defaultImage is the image of a kind of engine where service.yaml names none.
type defaultImage struct {
	kind service.EngineKind
	// image has an exact version. `up` adds the digest: see ResolveImages.
	image string
	// source is the public page of the release, read on the date.
	source, date string
}

// defaultImages are releases without known remote crashes. docs/security.md describes how they are chosen
// and kept current: update it with them; a test compares both.
var defaultImages = []defaultImage{
	{service.EngineVLLM, imageVLLM, "https://github.com/vllm-project/vllm/releases/tag/v0.33.0", "2026-11-24"},
	{service.EngineSGLang, imageSGLang, "https://github.com/sgl-project/sglang/releases/tag/v0.5.23", "2026-11-24"},
}

const (
	imageVLLM   = "vllm/vllm-openai:v0.33.0"
	imageSGLang = "lmsysorg/sglang:v0.5.23"
)

// imageOf returns the container image of an engine; empty for one without a container.
func imageOf(e *service.Engine) string {
	if e.Kind == service.EngineSim {
		return ""
	}
	image := e.Image
	for _, d := range defaultImages {
		if d.kind == e.Kind {
			image = cmp.Or(image, d.image)
		}
	}
	return image
}

// Images are the images of a service with their digests, NAME:TAG@sha256:DIGEST, by the name in service.yaml or in the
// table of default images. Machines pull by digest, so that all replicas run the same image, also those that
// a controller launches after the publisher has moved the tag.
type Images map[string]string

// pinned returns an image with its digest; the image itself if its digest is unknown.
func (i Images) pinned(image string) string { return cmp.Or(i[image], image) }

// ResolveImage is the value of `up --resolve-image`: whose digests are read from registries. The names and
// meanings are those of `docker stack deploy`.
type ResolveImage string

// The values.
const (
	ResolveChanged ResolveImage = "changed" // of images without a recorded digest
	ResolveAlways  ResolveImage = "always"  // of all images
	ResolveNever   ResolveImage = "never"   // of none
)

// ImageProblem is an image whose digest could not be read.
type ImageProblem struct {
	Key   string // the key in service.yaml, such as models[0].engine.image
	Image string
	Kept  string // the image with its recorded digest, which machines still pull; empty = they pull the tag
	Err   error
}

// ResolveImages returns the images of the containers on rented machines of a service. It keeps the recorded digests
// and reads others with digestOf (registry.Digest); which selects the images whose digests are read. An image without a
// digest is a problem: its machines pull the tag. The error is a *provision.SpecError about images that do not exist,
// which must not be launched.
func ResolveImages(ctx context.Context, spec *service.Spec, recorded Images, which ResolveImage, digestOf func(context.Context, string) (string, error)) (Images, []ImageProblem, error) {
	type lookup struct {
		ImageProblem
		pinned string
	}
	var all []*lookup
	for i := range spec.Models {
		m := &spec.Models[i]
		image := imageOf(&m.Engine)
		known := slices.ContainsFunc(all, func(l *lookup) bool { return l.Image == image })
		if spec.RentsContainers(m) && !known {
			all = append(all, &lookup{ImageProblem: ImageProblem{Key: fmt.Sprintf("models[%d].engine.image", i), Image: image}, pinned: recorded[image]})
		}
	}
	var wg sync.WaitGroup
	for _, l := range all {
		if which == ResolveNever || which != ResolveAlways && l.pinned != "" {
			continue
		}
		wg.Go(func() {
			digest, err := digestOf(ctx, l.Image)
			switch {
			case err != nil:
				l.Err = err
			case service.PinsImage(l.Image):
				l.pinned = l.Image
			default:
				l.pinned = l.Image + "@" + digest
			}
		})
	}
	wg.Wait()
	images := Images{}
	var missing []error
	var problems []ImageProblem
	for _, l := range all {
		switch {
		case errors.Is(l.Err, registry.ErrNotFound) || errors.Is(l.Err, registry.ErrInvalid):
			missing = append(missing, fmt.Errorf("%s: %s: %w; correct the name, or push the image", l.Key, l.Image, l.Err))
		case l.Err != nil && !service.PinsImage(l.Image):
			l.Kept = l.pinned
			problems = append(problems, l.ImageProblem)
		}
		if l.pinned != "" {
			images[l.Image] = l.pinned
		}
	}
	if len(missing) > 0 {
		return nil, nil, &provision.SpecError{Err: errors.Join(missing...)}
	}
	return images, problems, ctx.Err()
}

// String returns the problem in a line: its place, image, cause and next step.
func (p ImageProblem) String() string {
	next := "run the command again when the registry can be reached"
	switch {
	case errors.Is(p.Err, registry.ErrDenied):
		next = "run 'docker login' on this computer, or set NAME:TAG@sha256:DIGEST"
	case errors.Is(p.Err, registry.ErrLimited):
		next = "run 'skyserve up' again later, or 'docker login' for a higher limit"
	}
	effect := "machines pull the tag, and replicas may differ if it is moved"
	if p.Kept != "" {
		effect = "machines still pull " + p.Kept
	}
	return fmt.Sprintf("%s: cannot read the digest of %s: %v; %s; %s", p.Key, p.Image, p.Err, effect, next)
}

// ImagesOf returns the container images of the models on rented machines.
func ImagesOf(spec *service.Spec, images Images) []ImageStatus {
	all := []ImageStatus{}
	for i := range spec.Models {
		if m := &spec.Models[i]; spec.RentsContainers(m) {
			pinned := images.pinned(imageOf(&m.Engine))
			all = append(all, ImageStatus{m.Name, pinned, service.PinsImage(pinned)})
		}
	}
	return all
}
