package cloud

import (
	"skyserve/internal/service"
	"skyserve/provision"
)

// ImagesFor calls imagesFor for a layout of spec.
func ImagesFor(spec *service.Spec, r service.Region, offers provision.Offerings) map[string]string {
	return (&layout{LayoutInput: LayoutInput{Spec: spec}}).imagesFor(r, offers)
}
