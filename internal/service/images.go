package service

import (
	"fmt"
	"regexp"
	"strings"
)

// pinnedImage matches an image with a digest, with or without a tag.
var pinnedImage = regexp.MustCompile(`^[^@]+@sha256:[0-9a-f]{64}$`)

// PinsImage reports whether an image is pinned by its digest, so that every pull returns the same
// image; a tag can be moved.
func PinsImage(image string) bool { return pinnedImage.MatchString(image) }

// checkImage rejects an invalid digest.
func (c *checker) checkImage(e *Engine, p path) {
	if c.valid(p) && strings.Contains(e.Image, "@") && !PinsImage(e.Image) {
		c.reportProblem(p, "must have a digest of @sha256: and 64 hexadecimal digits")
	}
}

// InContainer reports whether the engine runs in a container on cloud machines.
func (e *Engine) InContainer() bool { return e.Kind != EngineSim }

// imageWarnings returns a warning for each image that cloud machines pull by a tag.
func (s *Spec) imageWarnings() []string {
	var all []string
	for i, m := range s.Models {
		rented := false
		for _, r := range s.Regions {
			rented = rented || r.Name.rented() && s.BoundsFor(m.Name, r.Name).Max > 0
		}
		if !rented || !m.Engine.InContainer() || PinsImage(m.Engine.Image) {
			continue
		}
		image := m.Engine.Image
		if image == "" {
			image = "the default image of " + string(m.Engine.Kind)
		}
		all = append(all, fmt.Sprintf("models[%d].engine.image: %s is not pinned by a digest; pin it as NAME:TAG@sha256:DIGEST ('docker buildx imagetools inspect NAME:TAG' prints the digest)", i, image))
	}
	return all
}
