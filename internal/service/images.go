package service

import (
	"fmt"
	"regexp"
	"strings"
)

// digested is an image by its digest, with or without a tag.
var digested = regexp.MustCompile(`^[^@]+@sha256:[0-9a-f]{64}$`)

// PinsImage says whether an image is named by its digest, so that it is the same whenever it is
// fetched; a tag can be given to another.
func PinsImage(image string) bool { return digested.MatchString(image) }

// image refuses a digest that is none.
func (c *checker) image(e *Engine, p path) {
	if c.fine(p) && strings.Contains(e.Image, "@") && !PinsImage(e.Image) {
		c.problem(p, "has a digest that is none, want @sha256: and 64 hexadecimal digits")
	}
}

// InContainer says whether an engine is run as a container where machines are rented.
func (e *Engine) InContainer() bool { return e.Kind != EngineSim }

// imageWarnings are those of images that rented machines fetch by a tag.
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
			image = "the default image"
		}
		all = append(all, fmt.Sprintf("models[%d].engine.image: %s is named by a tag, which its publisher can move to another image: pin it as NAME:TAG@sha256:DIGEST, which 'docker buildx imagetools inspect NAME:TAG' prints", i, image))
	}
	return all
}
