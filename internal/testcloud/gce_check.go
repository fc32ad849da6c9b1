package testcloud

import (
	"net/http"
	"slices"
	"strings"
)

// gceImage is an image of the project, or a public image by name.
type gceImage struct{ deprecated string }

// AddImage adds an image to the project in a state of deprecation: DEPRECATED, OBSOLETE, DELETED; empty = current.
func (g *GCE) AddImage(name, deprecated string) {
	g.withLock(func() { g.images[name] = gceImage{deprecated} })
}

// RemoveImageFamily removes a public image family and its image.
func (g *GCE) RemoveImageFamily(family string) {
	g.withLock(func() { g.missingFamilies = append(g.missingFamilies, family) })
}

// RemoveAccelerator removes a GPU type from a zone.
func (g *GCE) RemoveAccelerator(zone, name string) {
	g.withLock(func() { g.missingGPUs = append(g.missingGPUs, zone+"/"+name) })
}

// hasFamily reports whether a project has an image family.
func (g *GCE) hasFamily(project, family string) bool {
	return slices.Contains(gceImages[project], family) && !slices.Contains(g.missingFamilies, family)
}

func (g *GCE) getImageFamily(r *http.Request) (any, *gceError) {
	project, family := r.PathValue("project"), r.PathValue("name")
	if !g.hasFamily(project, family) {
		return nil, newGCEError(http.StatusNotFound, "notFound", "The resource 'projects/%s/global/images/family/%s' was not found", project, family)
	}
	return map[string]any{"kind": "compute#image", "name": family + "-v1", "family": family, "status": "READY"}, nil
}

func (g *GCE) getImage(r *http.Request) (any, *gceError) {
	project, name := r.PathValue("project"), r.PathValue("name")
	image := map[string]any{"kind": "compute#image", "name": name, "status": "READY"}
	own, known := g.images[name]
	family, isPublic := strings.CutSuffix(name, "-v1")
	switch {
	case project == g.project && known:
		if own.deprecated != "" {
			image["deprecated"] = map[string]string{"state": own.deprecated}
		}
	case !isPublic || !g.hasFamily(project, family):
		return nil, newGCEError(http.StatusNotFound, "notFound", "The resource 'projects/%s/global/images/%s' was not found", project, name)
	}
	return image, nil
}

func (g *GCE) getAcceleratorType(r *http.Request) (any, *gceError) {
	zone, name := r.PathValue("zone"), r.PathValue("name")
	if fail := g.checkZone(zone); fail != nil {
		return nil, fail
	}
	for _, m := range gceMachines {
		if m.accelerator == name && !slices.Contains(g.missingGPUs, zone+"/"+name) {
			return map[string]any{"kind": "compute#acceleratorType", "name": name, "zone": g.link("zones/" + zone)}, nil
		}
	}
	return nil, newGCEError(http.StatusNotFound, "notFound", "The resource 'projects/%s/zones/%s/acceleratorTypes/%s' was not found", g.project, zone, name)
}
