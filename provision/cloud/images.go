package cloud

import (
	"skyserve/internal/service"
	"skyserve/provision"
)

// imagesFor returns the configured boot images of a region that a machine with one of the offerings would boot; nil if
// there are none.
func (l *layout) imagesFor(r service.Region, offers provision.Offerings) map[string]string {
	var configured map[string]string
	for _, spec := range l.Spec.Regions {
		if spec.Name == r {
			configured = spec.Images
		}
	}
	var images map[string]string
	for _, o := range offers {
		for _, key := range provision.ImageKeys(o) {
			if configured[key] == "" {
				continue
			}
			if images == nil {
				images = map[string]string{}
			}
			images[key] = configured[key]
			break // the keys that follow are less specific
		}
	}
	return images
}
