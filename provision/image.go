package provision

import "skyserve/internal/service"

// ImageFor returns the configured boot image of a machine on an offering; empty = the cloud's current public
// image.
func (m *MachineConfig) ImageFor(o Offering) string {
	for _, key := range ImageKeys(o) {
		if image := m.Images[key]; image != "" {
			return image
		}
	}
	return ""
}

// ImageKeys returns the keys of regions[].images that apply to an offering, the most specific first.
func ImageKeys(o Offering) []string {
	if o.GPU == "" {
		return []string{service.ImageCPU}
	}
	return []string{o.GPU, service.ImageGPU}
}
