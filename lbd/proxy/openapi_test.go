package proxy

import (
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testkit"
	"skyserve/lbd/openai"
)

// docs/openapi.yaml describes every path of the public port, and no other.
func TestPublicRoutesAreInOpenAPI(t *testing.T) {
	documented := testkit.DocumentedRoutes(t, "../../docs/openapi.yaml")
	for _, own := range routes {
		for _, method := range own.methods {
			if route := method + " " + own.path; !slices.Contains(documented, route) {
				t.Errorf("%s is missing", route)
			}
		}
		if !slices.ContainsFunc(documented, func(route string) bool { _, path, _ := strings.Cut(route, " "); return own.matches(path) }) {
			t.Errorf("%s is missing", own.path)
		}
	}
	for rest, methods := range storedRequestMethods {
		for _, method := range methods {
			if route := method + " " + pathResponses + "{id}" + rest; !slices.Contains(documented, route) {
				t.Errorf("%s is missing", route)
			}
		}
	}
	for _, operation := range documented {
		_, path, _ := strings.Cut(operation, " ")
		own := slices.ContainsFunc(routes, func(o route) bool { return o.matches(path) })
		if openai.EndpointAt(path) == nil && !own {
			t.Errorf("%s is not served", operation)
		}
	}
}
