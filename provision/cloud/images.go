package cloud

import (
	"skyserve/internal/service"
	"skyserve/provision"
)

// imagesFor returns those of a region's configured boot images (regions[].images) that the offerings use, by the keys of
// provision.ImageKeys. It returns nil if no offering uses one.
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
