package cloud

import (
	"skyserve/internal/service"
	"skyserve/provision"
)

// imagesFor returns the configured boot images of a region that a machine with some offerings can boot; nil
// without any. Other images of the region do not concern the machine.
func (l *layout) imagesFor(r service.Region, offers provision.Offerings) map[string]string {
	var all map[string]string
	for _, spec := range l.Spec.Regions {
		if spec.Name == r {
			all = spec.Images
		}
	}
	var images map[string]string
	for _, o := range offers {
		for _, key := range provision.ImageKeys(o) {
			if all[key] == "" {
				continue
			}
			if images == nil {
				images = map[string]string{}
			}
			images[key] = all[key]
			break // a less specific image is not used
		}
	}
	return images
}
