package service

import (
	"regexp"
	"slices"
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

// RentsContainers reports whether rented machines may run a model's engine in a container.
func (s *Spec) RentsContainers(m *Model) bool {
	return m.Engine.InContainer() && slices.ContainsFunc(s.Regions, func(r RegionSpec) bool {
		return r.Name.Rented() && s.BoundsFor(m.Name, r.Name).Max > 0
	})
}
