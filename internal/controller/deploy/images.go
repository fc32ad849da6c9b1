package deploy

import (
	"cmp"

	"skyserve/internal/service"
)

// defaultImage is the image of a kind of engine where service.yaml names none.
type defaultImage struct {
	kind service.EngineKind
	// image has an exact version. A digest after it would pin it: NAME:TAG@sha256:DIGEST.
	image string
	// source is the public pages of the release and of its digest. sought is the date on which its digest
	// was last looked for.
	source, sought string
}

// defaultImages are releases without known remote crashes. docs/security.md describes how they are chosen
// and kept current: update it with them; a test compares both. None has a digest: only the registry itself
// can be trusted for one. `make image-digest` reads it there.
var defaultImages = []defaultImage{
	{service.EngineVLLM, imageVLLM, "https://github.com/vllm-project/vllm/releases/tag/v0.33.0, https://hub.docker.com/r/vllm/vllm-openai/tags", "2026-11-24"},
	{service.EngineSGLang, imageSGLang, "https://github.com/sgl-project/sglang/releases/tag/v0.5.23, https://hub.docker.com/r/lmsysorg/sglang/tags", "2026-11-24"},
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
